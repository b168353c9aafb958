#!/usr/bin/env python3
"""Lets a torch from PyPI run on a host without CUDA and without the 3 to 5 GB of CUDA libraries
that its package asks for.

usage: without_cuda.py SITE_PACKAGES

torch was installed there with `pip install --no-deps`. Its shared libraries are linked with those
of CUDA and cannot be loaded without them. This program puts small stand-ins of the same names
beside them: each function returns an error, so that torch finds no GPU. It needs a C compiler and
binutils.
"""

import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

_NO_DEVICE = 100  # cudaErrorNoDevice, and an error to the other libraries
_SYSTEM = re.compile(r'ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp)\.so')
_OF_CUDA = re.compile(r'(_*cu\w+|nccl\w+|nvshmem\w+|nvtx\w+)$')
_FIRST = ('libtorch_global_deps.so', 'libtorch_python.so')  # modules that `import torch` loads


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def loaded(folder):
    """Returns the libraries of torch that `import torch` loads, and {version of symbols: library}
    of those that it misses. Symbols without a version have the key None."""
    ours, missing, versions, waiting = {}, set(), {}, list(_FIRST)
    while waiting:
        name = waiting.pop()
        if name in ours or name in missing or _SYSTEM.match(name):
            continue
        if (folder / name).is_file():
            ours[name] = folder / name
            waiting += re.findall(
                r'\(NEEDED\).*\[(.*)\]', output('readelf', '-W', '-d', str(folder / name))
            )
        else:
            missing.add(name)
    for path in ours.values():
        for part in output('readelf', '-W', '-V', str(path)).split('  File: ')[1:]:
            library = part.split()[0]
            if library in missing:
                versions.update({version: library for version in re.findall(r'Name: (\S+)', part)})
    return ours.values(), missing, versions


def symbols(libraries, missing, versions):
    """Returns {missing library: {symbol: its version or None}}. A symbol without a version goes to
    any of the libraries."""
    defined, wanted = set(), set()
    for path in libraries:
        for line in output('nm', '-D', str(path)).splitlines():
            kind, name = line.split()[-2:]
            (wanted if kind == 'U' else defined).add(name)
    found = {library: {} for library in missing}
    for symbol in sorted(wanted - defined):
        name, _, version = symbol.partition('@')
        if version in versions:
            found[versions[version]][name] = version
        elif _OF_CUDA.match(symbol):
            found[min(missing)][name] = None
    return found


def stand_in(folder, library, wanted):
    nodes = collections.defaultdict(list)
    for name, version in wanted.items():
        nodes[version].append(name)
    functions = [
        f'const char* {name}(void) {{ return "no CUDA"; }}'
        if re.search('String|Name$', name)
        else f'long {name}(void) {{ return {_NO_DEVICE}; }}'
        for name in wanted
    ]
    script = [
        f'{version} {{ {" ".join(name + ";" for name in names)} }};'
        for version, names in nodes.items()
        if version
    ]
    with tempfile.TemporaryDirectory() as build:
        source, versions = pathlib.Path(build, 'stand_in.c'), pathlib.Path(build, 'versions')
        source.write_text('\n'.join([*functions, 'int no_cuda;\n']))
        versions.write_text('\n'.join(script))
        options = [f'-Wl,--version-script={versions}'] if script else []
        subprocess.run(
            [
                *os.environ.get('CC', 'cc').split(),
                '-shared',
                '-fPIC',
                '-w',
                '-fno-builtin',
                f'-Wl,-soname,{library}',
                *options,
                '-o',
                str(folder / library),
                str(source),
            ],
            check=True,
        )


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]) / 'torch/lib'
    libraries, missing, versions = loaded(folder)
    if missing:
        for library, wanted in symbols(libraries, missing, versions).items():
            stand_in(folder, library, wanted)


if __name__ == '__main__':
    main()
