#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what codecs between hosts do to training: a network is trained on two ranks that take
each other for hosts, with each codec and without, from the same seeds.

    codec_curves.py [--network digits|bytes] [--build build] [--epochs 67] [--seeds 5]
                    [--first-seed 1] [--fp32] [--ways WAY ...] [--json FILE] [--chart FILE.svg] [-- ARGUMENT ...]

digits: the network of examples/train; 67 epochs are 2,000 steps; with --fp32 its parameters and
gradients travel as fp32, not as bf16. bytes: the transformer of
perf/torch/train_bytes.py, of 4.8 million parameters, for 2,000 steps; it needs a Python with torch
and fsccl_torch. ARGUMENTs go to the program that trains.

The result of a run is the mean of its last tenth of losses on data that it does not train on. Each
way is compared, seed by seed, with the run without a codec. `order` is the control: it has no codec,
but makes the sums over a batch in the reverse order. The JSON file is written after each run, and
runs that it has already are not made again.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from free_port import free_port

ROOT = pathlib.Path(__file__).resolve().parents[1]
WAYS = {
    'plain': [],
    'order': ['--reversed'],
    'delta': ['--gather-codec', 'delta'],
    'gather int8': ['--gather-codec', 'int8'],
    'gather fp8': ['--gather-codec', 'fp8'],
    'gather mxfp8': ['--gather-codec', 'mxfp8'],
    'reduce bf16': ['--reduce-codec', 'bf16'],
    'reduce int8': ['--reduce-codec', 'int8'],
    'reduce int8+': ['--reduce-codec', 'int8+'],
    'reduce int4': ['--reduce-codec', 'int4'],
    'reduce int4+': ['--reduce-codec', 'int4+'],
}
RANKS = 2
TIMEOUT_S = 3600


def command_of(options, way, seed, path):
    """Returns the command of a rank, which writes the losses to `path`."""
    if options.network == 'digits':
        program = [options.build / 'examples' / 'train', '--epochs', str(options.epochs)]
        program += [] if options.fp32 else ['--mixed']
    else:
        program = [sys.executable, ROOT / 'perf/torch/train_bytes.py']
    return [
        *program,
        '--seed',
        str(seed),
        '--held-out-losses',
        path,
        *WAYS[way],
        *options.arguments,
    ]


def held_out_losses(options, way, seed, secret):
    """Trains, and returns the losses: one for each epoch, or for every few steps."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'losses'
        port, running = free_port(), []
        for rank in range(RANKS):
            place = {
                'RANK': rank,
                'WORLD_SIZE': RANKS,
                'LOCAL_RANK': 0,
                'LOCAL_WORLD_SIZE': 1,
                'MASTER_ADDR': '127.0.0.1',
                'MASTER_PORT': port,
                'FSCCL_HOST_ID': f'curves {rank}',
                'FSCCL_JOB_SECRET_FILE': secret,
            }
            environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
            command = command_of(options, way, seed, path)
            running.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        # Exit status 1 says that the network is less accurate than is expected of the example, as
        # after few epochs.
        ended = [process.wait(TIMEOUT_S) for process in running]
        if any(status not in (0, 1) for status in ended) or not path.exists():
            sys.exit(f'codec_curves: {way}, seed {seed}: the ranks ended with {ended}')
        losses = [float(line) for line in path.read_text(encoding='utf-8').split()]
    if not losses or (options.network == 'digits' and len(losses) != options.epochs):
        sys.exit(f'codec_curves: {way}, seed {seed}: {len(losses)} losses')
    return losses


def end_of(losses):
    return statistics.fmean(losses[-max(1, len(losses) // 10) :])


def table(curves):
    """Returns lines of text, which have for each way the mean at the end and how it differs from
    `plain`."""
    plain = [end_of(losses) for losses in curves['plain']]
    lines = [
        f'{"way":14} {"held-out loss":>14} {"difference":>12} {"of it, %":>10} {"its deviation, %":>17}'
    ]
    for way, runs in curves.items():
        ends = [end_of(losses) for losses in runs]
        shares = [(end - before) / before for end, before in zip(ends, plain)]
        spread = statistics.stdev(shares) if len(shares) > 1 else math.nan
        mean = statistics.fmean(ends)
        lines.append(
            f'{way:14} {mean:14.6f} {mean - statistics.fmean(plain):12.6f} '
            f'{100 * statistics.fmean(shares):10.3f} {100 * spread:17.3f}'
        )
    return lines


def chart(curves, network, path):
    """Draws a line for each way: the mean over the seeds of each loss, in the order of the
    losses."""
    wide, high, left, top = 720, 360, 56, 20
    means = {way: [statistics.fmean(at) for at in zip(*runs)] for way, runs in curves.items()}
    every = list(itertools.chain(*means.values()))
    low, most = math.log10(min(every)), math.log10(max(every))
    epochs = max(2, len(next(iter(means.values()))))

    def place(epoch, loss):
        share = (math.log10(loss) - low) / max(most - low, 1e-9)
        return f'{left + epoch / (epochs - 1) * wide:.1f},{top + (1 - share) * high:.1f}'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide + 190}" height="{high + 60}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for k, share in enumerate((0, 0.25, 0.5, 0.75, 1)):
        y, loss = top + (1 - share) * high, 10 ** (low + share * (most - low))
        parts.append(
            f'<path d="M{left} {y:.1f}h{wide}" stroke="#ddd"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{loss:.3f}</text>'
        )
        parts.append(
            f'<text x="{left + k / 4 * wide:.1f}" y="{top + high + 18}" text-anchor="middle">'
            f'{round(1 + k / 4 * (epochs - 1))}</text>'
        )
    for k, (way, losses) in enumerate(means.items()):
        colour = f'hsl({k * 360 // len(means)},70%,40%)'
        track = ' '.join(place(epoch, loss) for epoch, loss in enumerate(losses))
        parts.append(
            f'<polyline points="{track}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
            f'<text x="{left + wide + 12}" y="{top + 14 + 18 * k}" fill="{colour}">{way}</text>'
        )
    parts.append(
        f'<text x="{left + wide / 2:.0f}" y="{top + high + 36}" text-anchor="middle">'
        f'{"epochs" if network == "digits" else "measurements"}; loss on data that is not trained '
        'on, the mean over the seeds</text></svg>'
    )
    path.write_text('\n'.join(parts) + '\n', encoding='utf-8')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--network', choices=['digits', 'bytes'], default='digits')
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build')
    parser.add_argument('--epochs', type=int, default=67)
    parser.add_argument('--seeds', type=int, default=5, help='how many seeds (default 5)')
    parser.add_argument('--first-seed', type=int, default=1)
    parser.add_argument('--fp32', action='store_true')
    parser.add_argument('--ways', nargs='+', choices=WAYS, default=list(WAYS))
    parser.add_argument('--json', type=pathlib.Path)
    parser.add_argument('--chart', type=pathlib.Path)
    parser.add_argument('arguments', nargs='*')
    options = parser.parse_args()
    ways = ['plain', *(way for way in options.ways if way != 'plain')]
    curves = {way: [] for way in ways}
    if options.json and options.json.exists():
        curves |= json.loads(options.json.read_text(encoding='utf-8'))
    with tempfile.NamedTemporaryFile('w', suffix='.secret') as secret:
        secret.write(os.urandom(16).hex())
        secret.flush()
        for k, way in itertools.product(range(options.seeds), ways):
            if len(curves[way]) > k:
                continue
            losses = held_out_losses(options, way, options.first_seed + k, secret.name)
            curves[way].append(losses)
            if options.json:
                options.json.write_text(json.dumps(curves) + '\n', encoding='utf-8')
    if any(
        with_it != without for with_it, without in zip(curves.get('delta', []), curves['plain'])
    ):
        sys.exit('codec_curves: the delta codec changed a loss')
    print('\n'.join(table(curves)))
    if options.chart:
        chart(curves, options.network, options.chart)


if __name__ == '__main__':
    main()
