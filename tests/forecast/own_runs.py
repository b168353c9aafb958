#!/usr/bin/env python3
"""Compares the forecast's communication with fsccl-perf step on this machine.

usage: own_runs.py FSCCL-INFO FSCCL-PERF [RUNS [RANKS]]

The models, numbers of ranks (only RANKS, if given) and steps are those of own_points.json. Each has
RUNS (5) runs of five steps, in turn. Their median is compared with the median of the forecasts for
`--machine here`, which measure the machine between the runs. The test writes the rows of
docs/forecast.md. A row is not judged if half of its interquartile range is more than 5 % of the
median, so the machine should do nothing else. The test fails if the forecast of a judged row is off
by more than 10 %.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

POINTS = json.loads((pathlib.Path(__file__).parent / 'own_points.json').read_text(encoding='utf-8'))


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


def of_perf(step):
    """Returns the options of fsccl-perf step for a step of own_points.json."""
    return ['--keep', 'always'] if step == ['--keep'] else step


def forecast_s(info, path, ranks, step, *more):
    """Returns the communication of a step on this machine, which is measured for it."""
    options = ['--keep', '64G'] if step == ['--keep'] else step
    where = ['--machine', 'here', '--ranks', ranks, '--sequence', '1', '--json']
    return ask(info, 'forecast', path, *where, *more, *options)['step']['communication_s']


def spread(values):
    """Returns half of the distance between the quartiles, as a part of the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / middle


def header():
    print('| model | ranks | step | measured ms | spread % | forecast ms | residual % | judged |')
    print('| -- | -- | -- | -- | -- | -- | -- | -- |', flush=True)


def report(name, ranks, step, measured, said):
    """Prints a row. Returns whether it is judged, and the forecast is off by more than 10 %."""
    middle, off = statistics.median(measured), spread(measured)
    residual = statistics.median(said) / middle - 1
    judged = off <= POINTS['most_spread']
    print(
        f'| {name} | {ranks} | {" ".join(step).lstrip("-")} | {1e3 * middle:.1f} | {100 * off:.1f} '
        f'| {1e3 * statistics.median(said):.1f} | {100 * residual:+.1f} '
        f'| {"yes" if judged else "no"} |',
        flush=True,
    )
    return judged and abs(residual) > POINTS['most_residual']


def main():
    info, perf = sys.argv[1:3]
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    wanted = [int(sys.argv[4])] if len(sys.argv) > 4 else POINTS['within']['ranks']
    worse = 0
    header()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'model.json'
        for shape in POINTS['within']['models']:
            path.write_text(json.dumps(model(*shape)), encoding='utf-8')
            for ranks in wanted:
                for step in POINTS['steps']:
                    measured, said = [], []
                    options = ['--model', path, '--ranks', ranks, '--steps', '5', '--json']
                    for _ in range(runs):
                        found = ask(perf, 'step', *options, *of_perf(step))
                        measured.append(found['total_us'] / 1e6)
                        said.append(forecast_s(info, path, ranks, step))
                    worse += report(f'width {shape[0]}', ranks, step, measured, said)
    sys.exit(f'{worse} rows beyond 10 %' if worse else 0)


if __name__ == '__main__':
    main()
