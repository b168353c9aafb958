# SPDX-License-Identifier: Apache-2.0
"""Tests the wheels fsccl and fsccl-torch as a user has them. They are installed with pip from a
folder, without a compiler on the path, beside an existing torch. They are used, and removed again.

FSCCL_WHEELHOUSE names a folder with both wheels, such as packaging/wheel/build.py makes. If it is
not set, the wheels are made from the build tree.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from bare import Environment, run, succeed

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ['FSCCL_TORCH_LIBRARY'])
INSTALL_SECONDS = 30


@pytest.fixture(scope='module')
def wheelhouse(tmp_path_factory):
    given = os.environ.get('FSCCL_WHEELHOUSE')
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp('wheelhouse')
    succeed(
        os.environ.get('MESON', 'meson'),
        'install',
        '-C',
        LIBRARY.parent,
        '--no-rebuild',
        '--quiet',
        '--destdir',
        folder / 'destination',
    )
    (header,) = folder.glob('destination/**/include/fsccl/fsccl.h')
    # Copies, because setuptools builds beside the sources, where another test may build at the same
    # time.
    left_out = shutil.ignore_patterns('build', '*.egg-info', '*.so*', '__pycache__')
    packages = [
        shutil.copytree(ROOT / 'bindings' / name, folder / 'bindings' / name, ignore=left_out)
        for name in ('python', 'torch')
    ]
    for name in ('include', 'tools', 'LICENSE', 'bindings/wheels.py'):
        (folder / name).symlink_to(ROOT / name)
    succeed(
        sys.executable,
        '-m',
        'pip',
        '--disable-pip-version-check',
        'wheel',
        '--no-deps',
        '--no-build-isolation',
        '-w',
        folder,
        *packages,
        FSCCL_WHEEL_PREFIX=header.parents[2],
        FSCCL_WHEEL_TREE=LIBRARY.parent,
    )
    return folder


@pytest.fixture(scope='module')
def version():
    header = (ROOT / 'include/fsccl/fsccl.h').read_text()
    return '.'.join(re.findall(r'#define FSCCL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)', header))


@pytest.fixture(scope='module')
def bare(tmp_path_factory, wheelhouse):
    there = Environment(tmp_path_factory.mktemp('bare'))
    there.before = there.files()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    there.pip('install', '--no-index', '--find-links', wheelhouse, 'fsccl-torch')
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    there.seconds = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return there


def test_installation_takes_no_compiler_and_half_a_minute(bare):
    assert not any(
        shutil.which(name, path=str(bare.bin)) for name in ('c++', 'g++', 'cc', 'clang', 'meson')
    )
    assert bare.seconds < INSTALL_SECONDS
    listed = json.loads(bare.pip('list', '--format', 'json'))
    assert {'fsccl', 'fsccl_torch'} <= {entry['name'].replace('-', '_') for entry in listed}


def test_two_line_example(bare):
    done = bare.run(
        '-m',
        'torch.distributed.run',
        '--standalone',
        '--nproc-per-node',
        '2',
        ROOT / 'examples/torch/fsdp2_train.py',
    )
    assert done.returncode == 0, done.stdout
    assert 'loss' in done.stdout


def test_one_library_in_the_process(bare):
    text = (
        'import fsccl, fsccl_torch; print(fsccl.get_library()); '
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libfsccl' in line})"
    )
    done = bare.run('-c', text)
    said, mapped = done.stdout.strip().splitlines()
    assert said == mapped == str(bare.site / 'fsccl/lib/libfsccl.so.0')


def test_programs(bare, version):
    for name in ('fsccl-info', 'fsccl-perf', 'fsccl-trace'):
        assert version in succeed(bare.bin / name, '--version', PATH=bare.bin)
    done = run(bare.bin / 'fsccl-perf', 'collectives', '--no-such-option', PATH=bare.bin)
    assert done.returncode == 2 and '--no-such-option' in done.stdout, done
    assert 'no layout of such blocks has less' in succeed(
        bare.bin / 'fsccl-info', 'layout', 'llama-3.2-1b', '--world', '4', PATH=bare.bin
    )


PROGRAM = """
#include <fsccl/fsccl.h>
#include <stdio.h>
int main(void) { int version; return fsccl_version(&version) || printf("%d\\n", version) < 0; }
"""


def test_compilers_find_it(bare, tmp_path):
    """Compilers find the library by pkg-config, by the folders that the package names, and by CMake
    below the prefix."""
    (tmp_path / 'program.c').write_text(PROGRAM)
    (tmp_path / 'CMakeLists.txt').write_text(
        'cmake_minimum_required(VERSION 3.16)\nproject(program C)\nfind_package(fsccl 0.1 CONFIG '
        'REQUIRED)\n'
        'add_executable(program program.c)\ntarget_link_libraries(program fsccl::fsccl)\n'
    )
    prefix = bare.site / 'fsccl'
    entry = (
        'import importlib.metadata as m; '
        "print(*[e.load().__path__[0] for e in m.entry_points(group='cmake.prefix') if e.name == "
        "'fsccl'])"
    )
    assert bare.run('-c', entry).stdout.strip() == str(prefix)
    assert bare.run('-c', 'import fsccl; print(fsccl.get_include())').stdout.strip() == str(
        prefix / 'include'
    )
    flags = succeed(
        'pkg-config', '--cflags', '--libs', 'fsccl', PKG_CONFIG_PATH=prefix / 'lib/pkgconfig'
    ).split()
    assert f'-I{prefix}' in flags[0].replace('lib/pkgconfig/../../', '')
    succeed(
        'cc',
        '-o',
        tmp_path / 'program',
        tmp_path / 'program.c',
        *flags,
        f'-Wl,-rpath,{prefix}/lib',
        '-Wl,--allow-shlib-undefined',
    )
    succeed(
        'cmake',
        '-S',
        tmp_path,
        '-B',
        tmp_path / 'tree',
        f'-DCMAKE_PREFIX_PATH={prefix}',
        '-DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined',
    )
    succeed('cmake', '--build', tmp_path / 'tree')
    for program in (tmp_path / 'program', tmp_path / 'tree/program'):
        assert succeed(program).strip() == '100'


def test_bill_of_materials(wheelhouse, version):
    (wheel,) = wheelhouse.glob('fsccl-*.whl')
    with zipfile.ZipFile(wheel) as archive:
        content = json.loads(archive.read(f'fsccl-{version}.dist-info/sboms/fsccl.cdx.json'))
        licence = archive.read(f'fsccl-{version}.dist-info/licenses/LICENSE').decode()
    assert (content['bomFormat'], content['metadata']['component']['version']) == (
        'CycloneDX',
        version,
    )
    assert {'fmt', 'libsodium', 'libhwy', 'hwloc', 'nlohmann_json', 'CLI11'} <= {
        component['name'] for component in content['components']
    }
    assert licence == (ROOT / 'LICENSE').read_text()


@pytest.mark.parametrize('there', ['2.7.0a0+7c8ec84dab.nv25.03', '2.11.0', '2.15.0+cu132'])
def test_pip_leaves_the_torch_that_is_there(wheelhouse, tmp_path, there, version):
    info = tmp_path / f'torch-{there}.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: torch\nVersion: {there}\n')
    subprocess.run([sys.executable, '-m', 'venv', tmp_path / 'venv'], check=True)
    said = succeed(
        tmp_path / 'venv/bin/python',
        '-m',
        'pip',
        '--disable-pip-version-check',
        'install',
        '--dry-run',
        '--no-index',
        '--find-links',
        wheelhouse,
        'fsccl-torch',
        PYTHONPATH=tmp_path,
    )
    assert f'Requirement already satisfied: torch in {tmp_path}' in said
    would = re.search('Would install (.*)', said)[1].replace('_', '-').split()
    assert sorted(would) == [f'fsccl-{version}', f'fsccl-torch-{version}']


def refusal(bare, program='import fsccl_torch', **changes):
    done = bare.run('-c', program, **changes)
    assert done.returncode == 1, done.stdout
    return done.stdout.strip().splitlines()[-1]


def test_another_library_in_the_process(bare, tmp_path):
    other = tmp_path / 'libfsccl.so.0'
    shutil.copy(bare.site / 'fsccl/lib/libfsccl.so.0', other)
    for folder in (bare.site / 'fsccl.libs').glob(
        '*'
    ):  # libraries that auditwheel has put beside ours are found relative to it
        shutil.copy(folder, tmp_path)
    text = refusal(
        bare,
        f'import ctypes; ctypes.CDLL({str(other)!r}); import fsccl_torch',
        LD_LIBRARY_PATH=tmp_path,
    )
    assert text.startswith(
        f'ImportError: fsccl_torch: this process has loaded {other} already, and would load '
        f'{bare.site}/fsccl/lib/libfsccl.so.0'
    )
    assert f'set FSCCL_TORCH_LIBRARY={other}, or take' in text
    done = bare.run(
        '-c',
        f'import ctypes; ctypes.CDLL({str(other)!r}); import fsccl_torch',
        FSCCL_TORCH_LIBRARY=other,
        LD_LIBRARY_PATH=tmp_path,
    )
    assert done.returncode == 0, done.stdout


def test_a_system_without_glibc(bare, tmp_path):
    """On such a system Python itself says what its C library is, and pip finds no wheel."""
    broken = tmp_path / 'libfsccl.so'
    broken.write_text('no library')
    text = refusal(
        bare,
        "import platform; platform.libc_ver = lambda *words: ('', ''); import fsccl_torch",
        FSCCL_TORCH_LIBRARY=broken,
    )
    assert (
        'C library is not glibc (on Alpine Linux it is musl)' in text
        and 'use an image with glibc' in text
    )
    text = refusal(bare, FSCCL_TORCH_LIBRARY=broken)
    assert 'musl' not in text and 'pip install --force-reinstall --no-deps fsccl' in text


def test_musl_finds_no_wheel(bare, wheelhouse, tmp_path):
    done = bare.run(
        '-m',
        'pip',
        '--disable-pip-version-check',
        'download',
        '--no-index',
        '--find-links',
        wheelhouse,
        '--only-binary=:all:',
        '--platform',
        'musllinux_1_2_x86_64',
        '--no-deps',
        '-d',
        tmp_path,
        'fsccl',
    )
    assert done.returncode != 0 and 'No matching distribution found for fsccl' in done.stdout


def test_incomplete_package(bare):
    library = bare.site / 'fsccl/lib/libfsccl.so.0'
    aside = library.rename(library.with_name('aside'))
    try:
        text = refusal(bare)
    finally:
        aside.rename(library)
    assert (
        text.startswith(f'ImportError: fsccl_torch: fsccl: {library} is missing')
        and 'pip install --force-reinstall --no-deps fsccl' in text
    )


def test_uninstall_leaves_nothing(bare):
    """This test comes last and leaves the environment bare again. The error of a missing library is
    read before the second package is removed."""
    bare.pip('uninstall', '-y', 'fsccl')
    text = refusal(bare)
    assert (
        text.startswith('ImportError: fsccl_torch: there is no libfsccl')
        and '`pip install fsccl`' in text
    )
    bare.pip('uninstall', '-y', 'fsccl-torch')
    assert bare.files() == bare.before
