# SPDX-License-Identifier: Apache-2.0
"""Tests the wheel: it is for every Python, carries the libraries for XLA, and takes libfsccl from
the package fsccl, or carries libfsccl, too. It works without any variable."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import ranks as r

COMMAND = [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--disable-pip-version-check'] + [
    '--no-deps',
    '--no-build-isolation',
    str(r.ROOT / 'bindings/jax'),
    '-w',
]
FOLDERS = [pathlib.Path(folder) for folder in os.environ['FSCCL_JAX_LIBRARIES'].split(':')]
OURS = ('libfsccl_jax.so', 'libfsccl_mpi.so')


def installed(folder, libraries):
    """Returns the unpacked wheel that carries the libraries of these folders, and its
    dependencies."""
    variables = {**os.environ, 'FSCCL_JAX_LIBRARIES': ':'.join(map(str, libraries))}
    subprocess.run([*COMMAND, str(folder)], check=True, timeout=300, env=variables)
    wheel = next(folder.glob('*.whl'))
    assert wheel.name.startswith('fsccl_jax-') and '-py3-none-' in wheel.name
    place = folder / 'installed'
    zipfile.ZipFile(wheel).extractall(place)
    metadata = next(place.glob('*.dist-info/METADATA')).read_text(encoding='utf-8')
    needs = [line for line in metadata.splitlines() if line.startswith('Requires-Dist: ')]
    return place, needs


def check(place, **variables):
    outputs = r.run(
        """
        x = shard_map(lambda x: lax.psum(x, "ranks"))(split(np.ones(4, np.float32)))
        group = fsccl_jax.join(mesh)
        y = shard_map(lambda x: group.all_reduce(x, group.token())[0])(x)
        mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libfsccl.so" in line}
        print("total", float(y.addressable_shards[0].data[0]), fsccl_jax.__file__, *mapped)
        """,
        PYTHONPATH=str(place),
        FSCCL_JAX_LIBRARIES='',
        **variables,
    )
    for output in outputs:
        assert f'total 4.0 {place}' in output, output
        yield output.split()[-1]


def test_a_program_runs_on_a_wheel_that_carries_libfsccl(tmp_path):
    place, needs = installed(tmp_path, FOLDERS)
    assert needs == ['Requires-Dist: jax']
    carried = {file.name for file in (place / 'fsccl_jax').glob('*.so*')}
    assert carried == {'libfsccl.so.0', *OURS}
    assert set(check(place)) == {str(place / 'fsccl_jax/libfsccl.so.0')}


def test_the_wheel_takes_libfsccl_from_the_package_fsccl(tmp_path):
    apart = tmp_path / 'apart'
    apart.mkdir()
    for name in (*OURS, 'libfsccl.so.0'):
        found = next(folder / name for folder in FOLDERS if (folder / name).is_file())
        shutil.copy(found, apart / name)
    (apart / 'libfsccl.so.0').rename(tmp_path / 'libfsccl.so.0')
    place, needs = installed(tmp_path, [apart])
    assert needs[0] == 'Requires-Dist: jax' and needs[1].startswith('Requires-Dist: fsccl<'), needs
    assert {file.name for file in (place / 'fsccl_jax').glob('*.so*')} == set(OURS)
    status, output = r.python(
        'import fsccl_jax; fsccl_jax.use()', PYTHONPATH=str(place), FSCCL_JAX_LIBRARIES=''
    )
    assert status == 1 and 'Install it with `pip install fsccl`' in output, output
    shutil.copytree(r.ROOT / 'bindings/python/fsccl', place / 'fsccl', dirs_exist_ok=True)
    (place / 'fsccl/lib').mkdir(exist_ok=True)
    shutil.copy(tmp_path / 'libfsccl.so.0', place / 'fsccl/lib')
    assert set(check(place)) == {str(place / 'fsccl/lib/libfsccl.so.0')}


def test_a_missing_library_is_named_when_the_wheel_is_built(tmp_path):
    result = subprocess.run(
        [word for word in COMMAND if word != '--quiet'] + [str(tmp_path)],
        env={**os.environ, 'FSCCL_JAX_LIBRARIES': str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode != 0
    assert f'libfsccl_jax.so is not in {tmp_path}: build FSCCL there' in result.stdout, (
        result.stdout
    )
