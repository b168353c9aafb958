# SPDX-License-Identifier: Apache-2.0
"""The wheel: it carries the libraries of this build, is for every Python, and works by itself,
without a variable."""

import os
import pathlib
import subprocess
import sys
import zipfile

import ranks as r


def test_a_program_runs_on_the_wheel_alone(tmp_path):
    command = [
        sys.executable,
        '-m',
        'pip',
        'wheel',
        '--quiet',
        '--disable-pip-version-check',
        '--no-deps',
        '--no-build-isolation',
        str(r.ROOT / 'bindings/jax'),
        '-w',
        str(tmp_path),
    ]
    subprocess.run(command, check=True, timeout=300)
    wheel = next(tmp_path.glob('*.whl'))
    assert wheel.name.startswith('fsccl_jax-') and '-py3-none-' in wheel.name
    place = tmp_path / 'installed'
    zipfile.ZipFile(wheel).extractall(place)
    assert {file.name for file in (place / 'fsccl_jax').glob('*.so*')} == {
        'libfsccl.so.0',
        'libfsccl_jax.so',
        'libfsccl_mpi.so',
    }
    outputs = r.run(
        """
        x = shard_map(lambda x: lax.psum(x, "ranks"))(split(np.ones(4, np.float32)))
        group = fsccl_jax.join(mesh)
        y = shard_map(lambda x: group.all_reduce(x, group.token())[0])(x)
        print("total", float(y.addressable_shards[0].data[0]), fsccl_jax.__file__)
        """,
        PYTHONPATH=str(place),
        FSCCL_JAX_LIBRARIES='',
    )
    for output in outputs:
        assert f'total 4.0 {place}' in output, output


def test_a_missing_library_is_named_when_the_wheel_is_built(tmp_path):
    command = [
        sys.executable,
        '-m',
        'pip',
        'wheel',
        '--disable-pip-version-check',
        '--no-deps',
        '--no-build-isolation',
        str(r.ROOT / 'bindings/jax'),
        '-w',
        str(tmp_path),
    ]
    result = subprocess.run(
        command,
        env={**os.environ, 'FSCCL_JAX_LIBRARIES': str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode != 0
    assert (
        f'libfsccl.so.0 is not in {pathlib.Path(tmp_path)}: build FSCCL there' in result.stdout
    ), result.stdout
