#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks fsccl_jax on a GPU: its collectives on the streams that XLA passes, in one process and in
two processes that share the GPU. Needs jax for CUDA, fsccl_jax on PYTHONPATH, and its libraries in
the folders that FSCCL_JAX_LIBRARIES lists; installs nothing.

usage: tests/jax/gpu_proof.py [--seconds 100] [--cpu]

Without --cpu JAX must find a GPU. With it the same program runs on processors.

Values are compared bit for bit with NumPy's, whose sums of two ranks have one order. The last line
is "N passed, N failed". The exit status is 0 when nothing failed.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'perf'))
from free_port import free_port

RANKS = 'PROOF_RANKS'
DTYPES = ('float32', 'float64', 'bfloat16', 'float16', 'int32')


def rank_program():
    """Runs one rank, which prints a line for each check."""
    rank, ranks, address = os.environ[RANKS].split()
    rank, ranks = int(rank), int(ranks)
    # pylint: disable=import-outside-toplevel
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    if ranks > 1:
        jax.distributed.initialize(address, ranks, rank, local_device_ids=[0])
    jax.config.update('jax_enable_x64', True)
    import fsccl_jax

    devices = jax.devices() if ranks > 1 else jax.devices()[:1]
    print(f'rank {rank}: jax {jax.__version__}, {devices}', flush=True)
    mesh = Mesh(devices, ('ranks',))
    group = fsccl_jax.join(mesh)
    split = NamedSharding(mesh, P('ranks'))

    def on_mesh(function):
        return jax.jit(
            jax.shard_map(
                function, mesh=mesh, in_specs=P('ranks'), out_specs=P('ranks'), check_vma=False
            )
        )

    def put(array):
        return jax.make_array_from_callback(array.shape, split, lambda index: array[index])

    def own(array):
        return np.asarray(array.addressable_shards[0].data)

    def check(name, test):
        begin = time.monotonic()
        try:
            test()
            print(f'passed {name} ({time.monotonic() - begin:.2f} s)', flush=True)
        except Exception as error:  # pylint: disable=broad-exception-caught
            print(f'failed {name}: {type(error).__name__}: {str(error)[:600]}', flush=True)

    def same(got, want):
        want = np.asarray(want).astype(got.dtype)
        assert got.shape == want.shape, (got.shape, want.shape)
        size = got.dtype.itemsize
        got, want = got.reshape(-1).view(f'u{size}'), want.reshape(-1).view(f'u{size}')
        assert np.array_equal(got, want), f'{np.count_nonzero(got != want)} of {got.size} differ'

    def every_collective(dtype, rows):
        def test():
            values = np.random.default_rng(1).integers(0, 9, (rows * ranks, 3))
            parts = np.split(values, ranks)

            def program(x):
                token = group.token()
                whole, token = group.all_gather(x, token)
                part, token = group.reduce_scatter(whole * 2, token)
                total, token = group.all_reduce(x + 1, token)
                last, token = group.broadcast(x, token, root=ranks - 1)
                moved, token = group.all_to_all(x, token)
                return whole, part, total, last, moved

            results = [own(result) for result in on_mesh(program)(put(values.astype(dtype)))]
            pieces = [np.split(part, ranks)[rank] for part in parts]
            same(results[0], values)
            same(results[1], 2 * ranks * parts[rank])
            same(results[2], sum(parts) + ranks)
            same(results[3], parts[-1])
            same(results[4], np.concatenate(pieces))

        return test

    def in_stream_order():
        """Runs a chain of XLA's kernels and collectives, each of which must see the results of
        those before it on the stream."""

        def program(x):
            token = group.token()
            for step in range(20):
                x, token = group.all_reduce(jnp.sin(x) + step, token, site=f'step {step}')
                x = x / (2 * ranks)
            return x

        values = np.linspace(0, 1, 1 << 20, dtype=np.float32)
        values = np.concatenate([values] * ranks)
        first = own(on_mesh(program)(put(values)))
        alone = values[: 1 << 20]
        for step in range(20):
            alone = (np.sin(alone) + np.float32(step)) * np.float32(0.5)
        np.testing.assert_allclose(first, alone, rtol=1e-4, atol=1e-5)
        for _ in range(3):
            same(own(on_mesh(program)(put(values))), first)

    def uneven_parts():
        counts = [5, 2][:ranks]
        values = np.arange(5 * ranks * 4, dtype=np.float32).reshape(-1, 4)

        def program(x):
            whole, token = group.all_gather(x, group.token(), counts=counts)
            part, token = group.reduce_scatter(whole, token, counts=counts)
            return whole, part

        whole, part = (own(result) for result in on_mesh(program)(put(values)))
        same(whole, np.concatenate([values[5 * r : 5 * r + c] for r, c in enumerate(counts)]))
        want = ranks * values[5 * rank : 5 * rank + 5]
        want[counts[rank] :] = 0
        same(part, want)

    def trains():
        """Trains two layers with FSDP, and compares the losses with those of whole parameters."""
        generator = np.random.default_rng(1)
        weights = [generator.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(2)]
        batch = generator.standard_normal((8 * ranks, 64)).astype(np.float32)

        def apply(weight, x):
            return jnp.tanh(x @ weight)

        dealt = [fsccl_jax.fsdp.shard(group, weight) for weight in weights]
        layers = [
            fsccl_jax.fsdp.Layer(group, apply, shape, f'layer {i}')
            for i, (_, shape) in enumerate(dealt)
        ]

        def loss(shards, x, token):
            for layer, shard in zip(layers, shards):
                x, token = layer(shard, x, token)
            return (x**2).mean()

        def step(shards, x):
            value, (gradients, token) = jax.value_and_grad(loss, argnums=(0, 2))(
                shards, x, group.token()
            )
            mean, token = group.all_reduce(value[None], token, 'loss')
            return [s - 0.1 * g for s, g in zip(shards, gradients)], mean / ranks

        sharded = jax.jit(
            jax.shard_map(
                step,
                mesh=mesh,
                in_specs=(P('ranks'), P('ranks')),
                out_specs=(P('ranks'), P('ranks')),
                check_vma=False,
            )
        )

        def whole_loss(whole, x):
            for weight in whole:
                x = apply(weight, x)
            return (x**2).mean()

        shards, whole, x = [part for part, _ in dealt], weights, put(batch)
        for _ in range(6):
            shards, value = sharded(shards, x)
            alone, gradients = jax.value_and_grad(whole_loss)(whole, batch)
            whole = [w - 0.1 * g for w, g in zip(whole, gradients)]
            np.testing.assert_allclose(own(value)[0], alone, rtol=1e-3)

    for dtype in DTYPES:
        check(f'every collective of {dtype}', every_collective(dtype, 6 * ranks))
    check('every collective of 24 MiB', every_collective('float32', (1 << 20) * ranks))
    check('stream order', in_stream_order)
    check('uneven parts', uneven_parts)
    check('training', trains)
    counters = fsccl_jax.group_counters()
    print(f'rank {rank}: {counters}', flush=True)
    group.leave()


EXPECTED = len(DTYPES) + 4


def run(ranks, until, platform):
    """Returns (passed, failed) of a job."""
    address = f'127.0.0.1:{free_port()}'
    # Two processes share the memory of one GPU.
    shared = {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false', 'XLA_PYTHON_CLIENT_MEM_FRACTION': '.4'}
    shared['JAX_PLATFORMS'] = platform
    processes = [
        subprocess.Popen(
            [sys.executable, '-u', __file__],
            env={**os.environ, **shared, RANKS: f'{rank} {ranks} {address}'},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    passed = failed = 0
    for rank, process in enumerate(processes):
        try:
            output, _ = process.communicate(timeout=max(1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0] + '\nended at the limit\n'
        print(
            f'--- {ranks} rank(s), rank {rank}: status {process.returncode}\n{output}', flush=True
        )
        good = output.count('\npassed ')
        passed += good
        failed += EXPECTED - good
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--seconds', type=float, default=100)
    parser.add_argument('--cpu', action='store_true')
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    platform = 'cpu' if options.cpu else 'cuda'
    results = [run(ranks, until, platform) for ranks in (1, 2)]
    passed, failed = (sum(numbers) for numbers in zip(*results))
    print(f'{passed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    if RANKS in os.environ:
        rank_program()
    else:
        sys.exit(main())
