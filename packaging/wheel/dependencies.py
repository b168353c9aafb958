# SPDX-License-Identifier: Apache-2.0
"""The libraries that libfsccl is built with, for a wheel that runs on old systems: fetched as
sources.txt pins them, checked, built by the compiler of the wheel as static libraries, and put with
their headers and pkg-config files into one folder.
"""

import hashlib
import io
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name('sources.txt')
# The archive drops a file when a newer one takes its place; the snapshot keeps it.
PLACES = (
    'https://deb.debian.org/debian/pool/main/',
    'https://snapshot.debian.org/archive/debian/20250901T000000Z/pool/main/',
)
FLAGS = ['-O2', '-fPIC', '-fvisibility=hidden', '-DNDEBUG']


class Source(NamedTuple):
    kind: str
    name: str
    version: str
    licence: str
    file: str
    sha256: str


def sources():
    lines = LIST.read_text(encoding='utf-8').splitlines()
    return [Source(*line.split()) for line in lines if line and not line.startswith('#')]


def fetch(source, folder):
    """The file of the source in the folder; it is read from the archive where it is not there
    yet."""
    path = folder / Path(source.file).name
    tried = []
    for place in ('', *PLACES):
        if place:
            try:
                with urllib.request.urlopen(
                    place + urllib.parse.quote(source.file), timeout=60
                ) as answer:
                    path.write_bytes(answer.read())
            except (urllib.error.URLError, OSError) as error:
                tried.append(f'{place}{source.file}: {error}')
                continue
        if path.is_file():
            found = hashlib.sha256(path.read_bytes()).hexdigest()
            if found == source.sha256:
                return path
            tried.append(f'{place or folder}: sha256 {found} instead of {source.sha256}')
    raise SystemExit(
        f'{source.name} {source.version} is not there:\n  '
        + '\n  '.join(tried)
        + f'\nPut {path.name} into {folder}, or let --sources name a folder that has it.'
    )


def unpack_package(path, folder):
    """A Debian package is an archive of ar; its files are in the member data.tar.*."""
    data, at = path.read_bytes(), 8
    while at < len(data):
        name, size = data[at : at + 16].decode().strip().rstrip('/'), int(data[at + 48 : at + 58])
        if name.startswith('data.tar'):
            with tarfile.open(fileobj=io.BytesIO(data[at + 60 : at + 60 + size])) as archive:
                archive.extractall(folder, filter='data')
            return
        at += 60 + size + size % 2
    raise SystemExit(f'{path} has no member data.tar: it is no Debian package')


def unpack(path, folder):
    """The one folder that the archive holds."""
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter='data')
    (top,) = [entry for entry in folder.iterdir() if entry.is_dir()]
    return top


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )
    if done.returncode:
        raise SystemExit(
            '\n'.join(done.stdout.splitlines()[-30:])
            + f'\n{command[0]}: exit status {done.returncode}'
        )


def archive(tools, prefix, name, folder, files, flags):
    objects = []
    for file in files:
        objects.append(folder / (Path(file).stem + '.o'))
        run(tools['cpp'], '-std=c++17', *FLAGS, *flags, '-c', folder / file, '-o', objects[-1])
    run(tools['ar'], 'rcs', prefix / f'lib/lib{name}.a', *objects)


def describe(prefix, source, libs, cflags=''):
    """Its pkg-config file."""
    text = (
        f'prefix={prefix}\nName: {source.name}\nDescription: {source.name} for the wheel of '
        f'FSCCL\nVersion: {source.version}\n'
        f'Libs: {libs}\nCflags: -I${{prefix}}/include {cflags}\n'
    )
    (prefix / f'lib/pkgconfig/{source.name}.pc').write_text(text, encoding='utf-8')


def build_fmt(tools, prefix, source, folder):
    archive(
        tools,
        prefix,
        'fmt',
        folder,
        ['src/format.cc', 'src/os.cc'],
        [f'-I{folder}/include', '-Wno-deprecated-literal-operator'],
    )
    shutil.copytree(folder / 'include/fmt', prefix / 'include/fmt')
    # A format string that clang 20 and newer do not take for a constant, as later versions of fmt
    # know.
    header, text = prefix / 'include/fmt/chrono.h', 'FMT_STRING("{:.{}f}")'
    header.write_text(
        header.read_text(encoding='utf-8').replace(text, 'runtime("{:.{}f}")'), encoding='utf-8'
    )
    describe(prefix, source, '-L${prefix}/lib -lfmt', '-Wno-deprecated-literal-operator')


def build_libhwy(_tools, prefix, source, folder):
    """Its headers alone."""
    for header in sorted((folder / 'hwy').rglob('*.h')):
        target = prefix / 'include' / header.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(header, target)
    describe(prefix, source, '')


def build_libsodium(tools, prefix, source, folder):
    """The portable code of every algorithm, without configure, which the archive's file lacks:
    FSCCL asks for hashes of short texts."""
    code = folder / 'src/libsodium'
    headers = code / 'include'
    version = {
        '@VERSION@': source.version,
        '@SODIUM_LIBRARY_VERSION_MAJOR@': '10',
        '@SODIUM_LIBRARY_VERSION_MINOR@': '3',
        '@SODIUM_LIBRARY_MINIMAL_DEF@': '',
    }
    text = (headers / 'sodium/version.h.in').read_text(encoding='utf-8')
    for word, value in version.items():
        text = text.replace(word, value)
    (headers / 'sodium/version.h').write_text(text, encoding='utf-8')
    defines = [
        'CONFIGURED=1',
        'SODIUM_STATIC=1',
        'NATIVE_LITTLE_ENDIAN=1',
        '_GNU_SOURCE=1',
        'HAVE_SYS_MMAN_H=1',
        'HAVE_MLOCK=1',
        'HAVE_MADVISE=1',
        'HAVE_MMAP=1',
        'HAVE_MPROTECT=1',
        'HAVE_RAISE=1',
        'HAVE_SYSCONF=1',
        'HAVE_POSIX_MEMALIGN=1',
        'HAVE_NANOSLEEP=1',
        'HAVE_EXPLICIT_BZERO=1',
        'HAVE_PTHREAD=1',
        'HAVE_ATOMIC_OPS=1',
        'HAVE_WEAK_SYMBOLS=1',
        'HAVE_STDINT_H=1',
        'HAVE_INTTYPES_H=1',
    ]
    objects = []
    for number, file in enumerate(sorted(code.rglob('*.c'))):
        objects.append(folder / f'{number}-{file.stem}.o')
        run(
            tools['c'],
            *FLAGS,
            *(f'-D{name}' for name in defines),
            f'-I{headers}',
            f'-I{headers}/sodium',
            '-c',
            file,
            '-o',
            objects[-1],
        )
    run(tools['ar'], 'rcs', prefix / 'lib/libsodium.a', *objects)
    shutil.copy(headers / 'sodium.h', prefix / 'include/sodium.h')
    shutil.copytree(headers / 'sodium', prefix / 'include/sodium')
    describe(prefix, source, '-L${prefix}/lib -lsodium', '-DSODIUM_STATIC=1')


def build(tools, prefix, downloads, work):
    """`tools`: the paths of c, cpp, ar and ranlib, and the host's name. `prefix` is made anew."""
    for folder in (prefix, work):
        shutil.rmtree(folder, ignore_errors=True)
    (prefix / 'lib/pkgconfig').mkdir(parents=True)
    (prefix / 'include').mkdir()
    downloads.mkdir(parents=True, exist_ok=True)
    (prefix / 'licenses').mkdir()
    for source in sources():
        path, folder = fetch(source, downloads), work / source.name
        folder.mkdir(parents=True)
        print(f'{source.name} {source.version}: {source.kind}', flush=True)
        if source.kind == 'headers':
            unpack_package(path, folder)
            (licence,) = folder.glob('usr/share/doc/*/copyright')
            shutil.copytree(folder / 'usr/include', prefix / 'include', dirs_exist_ok=True)
            for own in (prefix / 'include').glob(
                '*-linux-gnu'
            ):  # headers of one architecture: their content is that of all with 64 bits
                shutil.copytree(own, prefix / 'include', dirs_exist_ok=True)
                shutil.rmtree(own)
            describe(prefix, source, '')
        else:
            code = unpack(path, folder)
            licence = sorted(code.glob('LICENSE*'))[0]
            globals()[f'build_{source.name}'](tools, prefix, source, code)
        shutil.copy(licence, prefix / f'licenses/{source.name}.txt')
