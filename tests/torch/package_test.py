# SPDX-License-Identifier: Apache-2.0
"""Tests the wheel of fsccl_torch that carries a library, and both wheels built from the sources:
what is in them, that they work where they are installed, and their errors when something is wrong.
tests/packaging installs the wheels as users do."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / 'bindings/torch'
LIBRARY_PACKAGE = ROOT / 'bindings/python'
LIBRARY = os.environ['FSCCL_TORCH_LIBRARY']
# The program has two ranks that name the backend and import nothing of it.
TWO_RANKS = """
import json, pathlib, sys, torch, torch.distributed as dist
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("fsccl", init_method=f"file://{store}", rank=rank, world_size=2)
tensor = torch.full((5,), float(rank + 1))
dist.all_reduce(tensor)
assert tensor.tolist() == [3.0] * 5, tensor
dist.destroy_process_group()
lines = (line.rstrip("\\n").split(maxsplit=5) for line in open("/proc/self/maps"))
mapped = {pathlib.Path(line[5]) for line in lines if len(line) == 6}
mapped = [path for path in mapped if ".so" in path.name]
mapped = [path for path in mapped if "libfsccl" in path.name or path.parent.parent.name == "fsccl"]
print(json.dumps([sys.modules["fsccl_torch"].__file__, *map(str, mapped)]))
"""


def environment(**changes):
    """Returns this environment without what chooses the package and the library of the tree."""
    own = ('PYTHONPATH', 'FSCCL_TORCH_LIBRARY', 'PYTEST_ADDOPTS')
    return {
        **{name: value for name, value in os.environ.items() if name not in own},
        **{name: str(value) for name, value in changes.items()},
    }


def run(*command, **changes):
    return subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=1500,
        env=environment(**changes),
    )


def pip(*words, **changes):
    done = run(sys.executable, '-m', 'pip', '--disable-pip-version-check', *words, **changes)
    assert done.returncode == 0, done.stdout
    return done.stdout


def build_wheel(folder, *words, package=PACKAGE, **changes):
    pip('wheel', '--no-deps', '-w', folder, *words, package, **changes)
    (wheel,) = folder.glob('*.whl')
    return wheel


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    return build_wheel(
        tmp_path_factory.mktemp('wheel'), '--no-build-isolation', FSCCL_TORCH_LIBRARY=LIBRARY
    )


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp('installed')
    pip('install', '--no-deps', '--target', folder, wheel)
    return folder


def header_version():
    header = (ROOT / 'include/fsccl/fsccl.h').read_text()
    return '.'.join(re.findall(r'#define FSCCL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)', header))


def run_two_ranks(installed, tmp_path, folder='fsccl_torch', carried=('libfsccl.so',)):
    """Runs two ranks with the installed package. The libraries that they load from `folder` of the
    package must be exactly those whose names begin with one of `carried`."""
    program = tmp_path / 'program.py'
    program.write_text(TWO_RANKS)
    ranks = [
        subprocess.Popen(
            [sys.executable, program, str(rank), tmp_path / 'store'],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(PYTHONPATH=installed),
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    for rank, output in zip(ranks, outputs):
        assert rank.returncode == 0, output
        package, *mapped = json.loads(output.splitlines()[-1])
        assert package == str(installed / 'fsccl_torch/__init__.py')
        assert {Path(path).parent for path in mapped} == {installed / folder}, mapped
        names = sorted(Path(path).name for path in mapped)
        assert len(names) == len(carried) and all(map(str.startswith, names, sorted(carried))), (
            names
        )


def test_content(wheel):
    assert re.fullmatch(
        rf'fsccl_torch-{re.escape(header_version())}-py3-none-linux_\w+\.whl', wheel.name
    )
    with zipfile.ZipFile(wheel) as archive:
        files = {
            name: archive.getinfo(name) for name in archive.namelist() if '.dist-info/' not in name
        }
        info = wheel.name.split('-py3-')[0] + '.dist-info'
        entry_points = archive.read(f'{info}/entry_points.txt').decode()
        metadata = archive.read(f'{info}/METADATA').decode()
    modules = {f'fsccl_torch/{path.name}' for path in (PACKAGE / 'fsccl_torch').glob('*.py')}
    assert set(files) == modules | {'fsccl_torch/libfsccl.so', 'fsccl_torch_autoload.py'}
    assert files['fsccl_torch/libfsccl.so'].file_size == Path(LIBRARY).stat().st_size
    assert entry_points.split() == [
        '[torch.backends]',
        'fsccl',
        '=',
        'fsccl_torch_autoload:register',
        '[torch.distributed.backends]',
        'fsccl',
        '=',
        'fsccl_torch:register',
    ]
    assert f'\nVersion: {header_version()}\n' in metadata
    assert re.findall('Requires-Dist: (.*)', metadata) == ['torch']


def test_backend_is_found_by_its_name(installed, tmp_path):
    run_two_ranks(installed, tmp_path)


def test_wheel_built_from_the_sources(tmp_path):
    wheels = [
        build_wheel(tmp_path / package.name, package=package)
        for package in (LIBRARY_PACKAGE, PACKAGE)
    ]
    assert wheels[1].name == f'fsccl_torch-{header_version()}-py3-none-any.whl'
    installed = tmp_path / 'installed'
    pip('install', '--no-deps', '--target', installed, *wheels)
    linked = run('ldd', installed / 'fsccl/lib/libfsccl.so.0').stdout
    for name in ('libfmt', 'libsodium'):
        assert re.search(rf'{name}\S* => {re.escape(str(installed))}/fsccl/lib/{name}', linked), (
            linked
        )
    assert 'libhwy' not in linked  # only headers of Highway are used; loading it takes 3 to 7 ms
    run_two_ranks(installed, tmp_path, 'fsccl/lib', ('libfsccl.so', 'libfmt', 'libsodium'))


def test_editable_installation(tmp_path):
    """The package is used where it lies, and the library is put beside it."""
    package = shutil.copytree(
        PACKAGE,
        tmp_path / 'bindings/torch',
        ignore=shutil.ignore_patterns('build', '*.egg-info', '*.so*'),
    )
    (tmp_path / 'include').symlink_to(ROOT / 'include')
    (tmp_path / 'bindings/wheels.py').symlink_to(ROOT / 'bindings/wheels.py')
    pip(
        'install',
        '--no-deps',
        '--no-build-isolation',
        '--prefix',
        tmp_path / 'prefix',
        '-e',
        package,
        FSCCL_TORCH_LIBRARY=LIBRARY,
    )
    (site,) = tmp_path.glob('prefix/lib/python3*/site-packages')
    program = f'import site; site.addsitedir({str(site)!r}); import fsccl_torch; print(fsccl_torch.__file__)'
    done = run(sys.executable, '-c', program)
    assert done.stdout.strip() == str(package / 'fsccl_torch/__init__.py')


def test_build_with_a_library_that_is_not_there(tmp_path):
    done = run(
        sys.executable,
        '-m',
        'pip',
        'wheel',
        '--no-deps',
        '--no-build-isolation',
        '-w',
        tmp_path,
        PACKAGE,
        FSCCL_TORCH_LIBRARY=tmp_path / 'none.so',
    )
    assert (
        done.returncode != 0
        and f'FSCCL_TORCH_LIBRARY is {tmp_path}/none.so, which is no file' in done.stdout
    )


def test_build_without_what_the_library_needs(tmp_path):
    done = run(
        sys.executable,
        '-m',
        'pip',
        'wheel',
        '--no-deps',
        '-w',
        tmp_path,
        LIBRARY_PACKAGE,
        PKG_CONFIG_LIBDIR=tmp_path,
    )
    assert done.returncode != 0
    for name in (
        'libfmt-dev',
        'libsodium-dev',
        'libhwy-dev',
        'libhwloc-dev',
        'nlohmann-json3-dev',
        'libcli11-dev',
    ):
        assert name in done.stdout


def test_build_with_a_folder_that_has_no_library(tmp_path):
    done = run(
        sys.executable,
        '-m',
        'pip',
        'wheel',
        '--no-deps',
        '--no-build-isolation',
        '-w',
        tmp_path,
        LIBRARY_PACKAGE,
        FSCCL_WHEEL_PREFIX=tmp_path,
    )
    assert (
        done.returncode != 0
        and f'FSCCL_WHEEL_PREFIX is {tmp_path}, and there is no lib/libfsccl.so.0 in it'
        in done.stdout
    )


def refusal(**changes):
    done = run(sys.executable, '-c', 'import fsccl_torch', PYTHONPATH=PACKAGE, **changes)
    assert done.returncode == 1
    return done.stdout.strip().splitlines()[-1]


def test_library_is_missing(tmp_path):
    text = refusal(FSCCL_TORCH_LIBRARY=tmp_path / 'none.so')
    assert (
        text.startswith('ImportError: fsccl_torch: cannot load libfsccl from')
        and 'pip install' in text
    )


def test_library_is_another(tmp_path):
    text = refusal(FSCCL_TORCH_LIBRARY='libm.so.6')
    assert text.startswith('ImportError: fsccl_torch: libm.so.6 is no libfsccl')


def test_library_is_of_another_version(tmp_path):
    headers = [path.read_text() for path in (ROOT / 'include/fsccl').glob('*.h')]
    functions = {name for text in headers for name in re.findall(r'\b(fsccl_\w+)\(', text)}
    source = tmp_path / 'other.c'
    source.write_text(
        'int fsccl_version(int* version) { return *version = 900, 0; }\n'
        + ''.join(
            f'int {name}(void) {{ return 0; }}\n' for name in sorted(functions - {'fsccl_version'})
        )
    )
    other = tmp_path / 'libfsccl.so'
    assert (
        run(*os.environ.get('CC', 'cc').split(), '-shared', '-fPIC', '-o', other, source).returncode
        == 0
    )
    assert ctypes.CDLL(str(other)).fsccl_version(ctypes.byref(ctypes.c_int())) == 0
    text = refusal(FSCCL_TORCH_LIBRARY=other)
    assert text.startswith(
        f'ImportError: fsccl_torch: {other} is FSCCL 0.9, this package is made for'
    )


@pytest.mark.parametrize(
    'version',
    ['2.6.0+cu124', '2.7.0a0+7c8ec84dab.nv25.03', '2.11.0', '2.15.0+cu132', '2.99.0.dev20270101'],
)
def test_pip_leaves_the_torch_that_is_there(wheel, tmp_path, version):
    """pip leaves the installed torch alone, whether it is a release, one of a container, or too
    old."""
    there = tmp_path / f'torch-{version}.dist-info'
    there.mkdir()
    (there / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: torch\nVersion: {version}\n')
    done = pip('install', '--dry-run', '--no-index', wheel, PYTHONPATH=tmp_path)
    assert f'Requirement already satisfied: torch in {tmp_path}' in done
    would = re.search('Would install (.*)', done)
    assert would is None or would[1].split() == [f'fsccl_torch-{header_version()}'], done
