# SPDX-License-Identifier: Apache-2.0
"""Tests that the example gets the same numbers over FSCCL as over Gloo, JAX's own library. With two
ranks a sum has only one order, so they are equal bit for bit. With three and four ranks they are
close to those of one process."""

import json
import os
import subprocess
import sys

import pytest
import ranks as r


def losses(count, form, collectives, *more):
    words = [
        sys.executable,
        str(r.EXAMPLE),
        '--ranks',
        str(count),
        '--form',
        form,
        '--collectives',
        collectives,
        *more,
    ]
    result = subprocess.run(
        [*words, '--steps', '8', '--json'],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    line = next(line for line in result.stdout.splitlines() if line.startswith('{'))
    return json.loads(line)['losses']


def test_a_rank_that_fails_ends_the_example(tmp_path):
    """Rank 1 ends before it meets rank 0, which would wait for it for minutes."""
    (tmp_path / 'sitecustomize.py').write_text(
        'import os, sys\nif sys.argv[-4:-2] == ["--rank", "1"]: os._exit(5)\n'
    )
    path = f'{tmp_path}:{os.environ["PYTHONPATH"]}'
    result = subprocess.run(
        [sys.executable, str(r.EXAMPLE), '--ranks', '2'],
        env={**os.environ, 'PYTHONPATH': path},
        timeout=60,
        check=False,
    )
    assert result.returncode == 5


@pytest.mark.parametrize('form', ['shard_map', 'gspmd', 'replicated'])
def test_losses_of_two_ranks_are_gloos_bit_for_bit(form):
    over_fsccl = losses(2, form, 'fsccl')
    assert over_fsccl == losses(2, form, 'gloo')
    assert float.fromhex(over_fsccl[-1]) < 0.5 * float.fromhex(over_fsccl[0])


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_losses_of_fsccls_own_collectives_are_those_of_xlas(dtype):
    own, xlas = (
        [float.fromhex(value) for value in losses(2, form, collectives, '--dtype', dtype)]
        for form, collectives in (('fused', 'fsccl'), ('shard_map', 'gloo'))
    )
    assert own == xlas if dtype == 'float32' else own == pytest.approx(xlas, rel=1e-2)


@pytest.mark.parametrize('count', [3, 4])
@pytest.mark.parametrize('form', ['shard_map', 'gspmd', 'fused'])
def test_losses_of_more_ranks_are_close_to_one_process(count, form):
    alone = [float.fromhex(value) for value in losses(1, 'shard_map', 'gloo')]
    together = [float.fromhex(value) for value in losses(count, form, 'fsccl')]
    assert together == pytest.approx(alone, rel=1e-4)


def test_the_transformer_trains():
    small = ('--model', 'transformer', '--layers', '2', '--width', '96', '--batch', '8')
    over_fsccl = losses(2, 'shard_map', 'fsccl', *small)
    assert over_fsccl == losses(2, 'shard_map', 'gloo', *small)
    assert float.fromhex(over_fsccl[-1]) < float.fromhex(over_fsccl[0])
