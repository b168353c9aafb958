#!/usr/bin/env python3
"""Holds the forecast's communication against fsccl-perf step on this machine.

usage: own_runs.py FSCCL-INFO FSCCL-PERF [RUNS]

For a few models, 2 and 4 ranks, prefetch 0 and 1, and kept parameters: RUNS (5) runs of five steps
each in turn, their median against the forecast of `--machine here`, which is measured between them.
A row whose runs differ by more than 5 % (half of the middle half) says so and counts for nothing:
this wants a machine that does nothing else. Fails where a row that counts is beyond 10 %.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

MOST_SPREAD, MOST_RESIDUAL = 0.05, 0.10


def model(width, layers, vocabulary):
    params = [
        ['qkv_proj.weight', [3 * width, width]],
        ['o_proj.weight', [width, width]],
        ['up.weight', [4 * width, width]],
        ['down.weight', [width, 4 * width]],
    ]
    root = [['embed.weight', [vocabulary, width]], ['head.weight', [vocabulary, width]]]
    repeated = {'repeat': layers, 'first': 0, 'units': [{'name': 'layers.{}', 'params': params}]}
    return {'name': f'width {width}', 'units': [{'name': 'root', 'params': root}, repeated]}


def ask(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f'{" ".join(map(str, command))} ended with {done.returncode}')
    return json.loads(done.stdout)


def spread(values):
    """Half of the distance between the quartiles, as a part of the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / middle


def report(name, more, measured, said):
    """Prints a row; whether it counts and is beyond the bar."""
    middle, off = statistics.median(measured), spread(measured)
    residual = statistics.median(said) / middle - 1
    noisy = off > MOST_SPREAD
    print(
        f'{name:<38} {" ".join(more):<13} measured {1e3 * middle:8.2f} ms +- {100 * off:4.1f} %  '
        f'forecast {1e3 * statistics.median(said):8.2f} ms  {100 * residual:+6.1f} %'
        f'{"  too noisy to count" if noisy else ""}',
        flush=True,
    )
    return not noisy and abs(residual) > MOST_RESIDUAL


def main():
    info, perf = sys.argv[1:3]
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    worse = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'model.json'
        for shape in ((512, 12, 8000), (1024, 6, 8000), (1536, 4, 4000)):
            path.write_text(json.dumps(model(*shape)), encoding='utf-8')
            for ranks in (2, 4):
                for more in (('--prefetch', '0'), ('--prefetch', '1'), ('--keep',)):
                    kept = more == ('--keep',)
                    measured, said = [], []
                    for _ in range(runs):
                        step = ask(
                            perf,
                            'step',
                            '--model',
                            path,
                            '--ranks',
                            ranks,
                            '--steps',
                            '5',
                            '--json',
                            *(('--keep', 'always') if kept else more),
                        )
                        measured.append(step['total_us'] / 1e6)
                        answer = ask(
                            info,
                            'forecast',
                            path,
                            '--machine',
                            'here',
                            '--ranks',
                            ranks,
                            '--sequence',
                            '1',
                            '--json',
                            *(('--keep', '64G') if kept else more),
                        )
                        said.append(answer['step']['communication_s'])
                    worse += report(f'width {shape[0]}, {ranks} ranks', more, measured, said)
    sys.exit(f'{worse} rows beyond 10 %' if worse else 0)


if __name__ == '__main__':
    main()
