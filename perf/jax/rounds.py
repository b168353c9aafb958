#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times JAX over FSCCL beside Gloo, in rounds in which each form runs once, one after the other.

usage: rounds.py [--what step start] [--rounds N] [--steps N] [--width N] [--layers N] [--output FILE]

step:   the example trains 10 layers of 2240 x 2240 (50 million parameters) on 2 ranks with
        shard_map in fp32, with XLA's collectives over Gloo, the same over FSCCL, and FSCCL's own
        collectives. A form's time is the median of the steps but for the first, which compiles.
start:  two processes start, meet, make one sum and end.

Prints each round, then the median ratios to Gloo in the same round and the range of the rounds, and
appends a line for each of both to FILE, as perf/results has them. FSCCL_JAX_LIBRARIES and PYTHONPATH
say where fsccl_jax is where it is not installed.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / 'examples/jax/fsdp_train.py'
RANKS = 2
FORMS = {
    'gloo': ('shard_map', 'gloo'),
    'xla': ('shard_map', 'fsccl'),
    'own': ('fused', 'fsccl'),
}
SUM = """
import sys
form, rank, ranks, address = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if form != 'gloo':
    import fsccl_jax
if form == 'xla':
    fsccl_jax.use()
import jax, jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.distributed.initialize(address, ranks, rank)
mesh = Mesh(jax.devices(), ('ranks',))
if form == 'own':
    group = fsccl_jax.join(mesh)
    total = lambda x: group.all_reduce(x, group.token())[0]
else:
    total = lambda x: lax.psum(x, 'ranks')
run = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P('ranks'), out_specs=P('ranks'), check_vma=False))
x = jax.make_array_from_callback((ranks,), NamedSharding(mesh, P('ranks')), lambda _: jnp.ones(1))
assert float(run(x).addressable_shards[0].data[0]) == ranks
"""


def step_seconds(form, options):
    how, collectives = FORMS[form]
    words = ['--ranks', RANKS, '--form', how, '--collectives', collectives, '--json']
    sizes = ['--width', options.width, '--layers', options.layers, '--steps', options.steps + 1]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *map(str, words + sizes)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith('{'))
    return statistics.median(json.loads(line)['seconds'][1:])


def start_seconds(form, _options):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        address = f'127.0.0.1:{free.getsockname()[1]}'
    begin = time.perf_counter()
    processes = [
        subprocess.Popen([sys.executable, '-c', SUM, form, str(rank), str(RANKS), address])
        for rank in range(RANKS)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f'start over {form}: exit codes {codes}')
    return time.perf_counter() - begin


MEASURES = {'step': step_seconds, 'start': start_seconds}


def rounds_of(what, options):
    """{form: milliseconds of each round}."""
    times = {form: [] for form in FORMS}
    for number in range(options.rounds):
        for form in list(FORMS)[number % 3 :] + list(FORMS)[: number % 3]:
            times[form].append(round(1e3 * MEASURES[what](form, options), 1))
        last = ', '.join(f'{form} {values[-1]:.0f} ms' for form, values in times.items())
        print(f'{what}: {last}; load {os.getloadavg()[0]:.1f}', flush=True)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--what', nargs='+', choices=list(MEASURES), default=list(MEASURES))
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--steps', type=int, default=8, help='timed ones of a run')
    parser.add_argument('--width', type=int, default=2240)
    parser.add_argument('--layers', type=int, default=10)
    parser.add_argument('--output', type=pathlib.Path)
    options = parser.parse_args()
    for what in options.what:
        load = os.getloadavg()[0]
        times = rounds_of(what, options)
        row = {'kind': 'jax', 'what': what, 'ranks': RANKS}
        row |= {f'{form}_ms': values for form, values in times.items()}
        row['load'] = [round(load, 1), round(os.getloadavg()[0], 1)]
        for form in ('xla', 'own'):
            ratios = sorted(ours / gloo for ours, gloo in zip(times[form], times['gloo']))
            row[f'{form}_over_gloo'] = [round(ratio, 3) for ratio in ratios]
            print(
                f'{what}: {form} over Gloo: median {statistics.median(ratios):.2f} '
                f'({ratios[0]:.2f} to {ratios[-1]:.2f})'
            )
        if options.output:
            with options.output.open('a', encoding='utf-8') as file:
                file.write(json.dumps(row) + '\n')


if __name__ == '__main__':
    main()
