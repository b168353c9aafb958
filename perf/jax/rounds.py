#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times JAX over FSCCL beside Gloo, in rounds in which each form runs once, one after the other.

usage: rounds.py [--what step gspmd start] [--rounds N] [--steps N] [--width N] [--layers N]
                 [--output FILE]

step:   the example trains 10 layers of 2240 x 2240 (50 million parameters) on 2 ranks with
        shard_map in fp32. The forms are XLA's collectives over Gloo, the same over FSCCL, and
        FSCCL's own collectives. The time of a form is the median of its steps without the first
        one, which compiles.
gspmd:  the same parameters, but XLA makes the collectives, over Gloo and over FSCCL.
start:  two processes start, meet and make one sum. The time ends when the slower process has the
        sum. The phases are those of the slower process: imports; jax.distributed.initialize()
        ("meet"); the backend, which calls MPI_Init ("backend"); fsccl_jax.join() ("join"); tracing
        and compiling ("compile"); the first sum, with the making of XLA's communicator ("sum").
        "end" is the time from the sum to the end of the last process, which is no part of the
        start. Process 1 waits until process 0 listens: if it asks JAX's service earlier, then it
        is answered a second later with any collectives, and chance decides in which rounds that
        happens.

fsccl_jax is compiled to bytecode first, as pip does with the packages that it installs, JAX among
them. The script prints each round, then the median ratios to Gloo in the same round and the range
over the rounds, and appends a line for each to FILE in the form of perf/results. If fsccl_jax is
not installed, FSCCL_JAX_LIBRARIES and PYTHONPATH say where it is.
"""

import argparse
import compileall
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from free_port import free_port

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / 'examples/jax/fsdp_train.py'
RANKS = 2
# The options --form and --collectives of the example, by what is measured and the form's name.
STEPS = {
    'step': {
        'gloo': ('shard_map', 'gloo'),
        'xla': ('shard_map', 'fsccl'),
        'own': ('fused', 'fsccl'),
    },
    'gspmd': {'gloo': ('gspmd', 'gloo'), 'xla': ('gspmd', 'fsccl')},
}
STARTS = ('gloo', 'xla', 'own')
PHASES = ('import', 'meet', 'backend', 'join', 'compile', 'sum')
SUM = """
import json, socket, sys, time
times = [time.monotonic()]
form, rank, ranks, address = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if form != 'gloo':
    import fsccl_jax
if form == 'xla':
    fsccl_jax.use()
import jax, jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
times.append(time.monotonic())
while rank:
    try:
        socket.create_connection(address.split(':')).close()
        break
    except ConnectionRefusedError:
        time.sleep(0.002)
jax.distributed.initialize(address, ranks, rank)
times.append(time.monotonic())
mesh = Mesh(jax.devices(), ('ranks',))
times.append(time.monotonic())
if form == 'own':
    group = fsccl_jax.join(mesh)
    total = lambda x: group.all_reduce(x, group.token())[0]
else:
    total = lambda x: lax.psum(x, 'ranks')
times.append(time.monotonic())
run = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P('ranks'), out_specs=P('ranks'), check_vma=False))
x = jax.make_array_from_callback((ranks,), NamedSharding(mesh, P('ranks')), lambda _: jnp.ones(1))
run = run.lower(x).compile()
times.append(time.monotonic())
assert float(run(x).addressable_shards[0].data[0]) == ranks
times.append(time.monotonic())
print(json.dumps(times))
"""


def step_seconds(how, collectives, options):
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


def start_seconds(form):
    """Returns the seconds until the slower process has its sum, and {phase: seconds of that
    process}."""
    address = f'127.0.0.1:{free_port()}'
    begin = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, '-c', SUM, form, str(rank), str(RANKS), address],
            stdout=subprocess.PIPE,
        )
        for rank in range(RANKS)
    ]
    outputs = [process.communicate()[0] for process in processes]
    end = time.monotonic()
    if any(process.returncode for process in processes):
        sys.exit(f'start over {form}: exit codes {[process.returncode for process in processes]}')
    # Gloo writes its own lines before the result.
    times = max((json.loads(output.splitlines()[-1]) for output in outputs), key=lambda t: t[-1])
    phases = {name: times[i + 1] - times[i] for i, name in enumerate(PHASES)}
    return times[-1] - begin, {**phases, 'import': times[1] - begin, 'end': end - times[-1]}


def turns(forms, number):
    """Returns the forms in the order of round `number`. Each form begins in its turn."""
    forms = list(forms)
    first = number % len(forms)
    return forms[first:] + forms[:first]


def milliseconds(seconds):
    return round(1e3 * seconds, 1)


def rounds_of(what, options):
    """Returns {form: milliseconds of each round}, and {form: {phase: its median}}, which only
    starts have."""
    forms = STEPS.get(what, STARTS)
    times = {form: [] for form in forms}
    phases = {form: [] for form in forms}
    for number in range(options.rounds):
        for form in turns(forms, number):
            if what == 'start':
                seconds, parts = start_seconds(form)
                phases[form].append(parts)
            else:
                seconds = step_seconds(*forms[form], options)
            times[form].append(milliseconds(seconds))
        last = ', '.join(f'{form} {values[-1]:.0f} ms' for form, values in times.items())
        print(f'{what}: {last}; load {os.getloadavg()[0]:.1f}', flush=True)
    if what != 'start':
        return times, {}
    medians = {
        form: {
            phase: milliseconds(statistics.median(parts[phase] for parts in all_parts))
            for phase in (*PHASES, 'end')
        }
        for form, all_parts in phases.items()
    }
    return times, medians


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--what', nargs='+', choices=[*STEPS, 'start'], default=['step', 'start'])
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--steps', type=int, default=8, help='timed ones of a run')
    parser.add_argument('--width', type=int, default=2240)
    parser.add_argument('--layers', type=int, default=10)
    parser.add_argument('--output', type=pathlib.Path)
    options = parser.parse_args()
    package = importlib.util.find_spec('fsccl_jax').submodule_search_locations[0]
    compileall.compile_dir(package, quiet=1)
    for what in options.what:
        load = os.getloadavg()[0]
        times, phases = rounds_of(what, options)
        row = {'kind': 'jax', 'what': what, 'ranks': RANKS}
        row |= {f'{form}_ms': values for form, values in times.items()}
        if phases:
            row['phases_ms'] = phases
            for form, medians in phases.items():
                print(f'{form}: {medians}')
        row['load'] = [round(load, 1), round(os.getloadavg()[0], 1)]
        for form in list(times)[1:]:
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
