#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what codecs between hosts do to training: a network is trained on two ranks that take
each other for hosts, with each codec and without, from the same seeds.

    codec_curves.py [--network digits|bytes] [--build build] [--epochs 67] [--fp32]
                    [--seeds 1 2 3 4 5] [--ways WAY ...] [--results FILE.jsonl] [--label NAME]
                    [--chart FILE.svg] [-- ARGUMENT ...]

digits: the network of examples/train; 67 epochs are 2,000 steps; with --fp32 its parameters and
gradients travel as fp32, not as bf16. bytes: the transformer of perf/torch/train_bytes.py, of 4.8
million parameters, for 2,000 steps; it needs a Python with torch and fsccl_torch. ARGUMENTs go to
the program that trains.

The result of a run is the mean of its last tenth of losses on data that it does not train on. Each
way is compared, seed by seed, with the run without a codec. `order` is the control: it has no codec,
but makes the sums over a batch in the reverse order.

The losses of each run are appended to the file of results, with the label (by default the network)
as their network. Runs that the file has already are not made again, so the script also draws what
perf/results has. With --seeds and no number it makes none.
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


def known_runs(path, label):
    """Returns {way: {seed: losses}} of a file of results."""
    runs = {}
    if path and path.exists():
        for line in path.read_text(encoding='utf-8').splitlines():
            row = json.loads(line)
            if row.get('kind') == 'codec losses' and row['network'] == label:
                runs.setdefault(row['way'], {})[row['seed']] = row['losses']
    return runs


def end_of(losses):
    return statistics.fmean(losses[-max(1, len(losses) // 10) :])


def table(runs):
    """Returns lines of text, which have for each way the mean at the end and how it differs from
    the runs of the same seeds of `plain`."""
    lines = [
        f'{"way":14} {"seeds":>6} {"held-out loss":>14} {"difference, %":>14} '
        f'{"its deviation, %":>17}  by seed, %'
    ]
    for way, by_seed in runs.items():
        seeds = sorted(by_seed)
        ends = {seed: end_of(by_seed[seed]) for seed in seeds}
        shares = [100 * (end / end_of(runs['plain'][seed]) - 1) for seed, end in ends.items()]
        spread = statistics.stdev(shares) if len(shares) > 1 else math.nan
        lines.append(
            f'{way:14} {len(seeds):6} {statistics.fmean(ends.values()):14.6f} '
            f'{statistics.fmean(shares):14.3f} {spread:17.3f}  '
            + ', '.join(f'{share:+.3f}' for share in shares)
        )
    return lines


def panel(parts, lines, top, high, form):
    """Draws {way: values in the order of the losses}, with labels of this form at the left."""
    wide, left = 720, 56
    every = list(itertools.chain(*lines.values()))
    low, most, count = min(every), max(every), max(2, len(next(iter(lines.values()))))

    def place(at, value):
        share = (value - low) / max(most - low, 1e-9)
        return f'{left + at / (count - 1) * wide:.1f},{top + (1 - share) * high:.1f}'

    for share in (0, 0.25, 0.5, 0.75, 1):
        y = top + (1 - share) * high
        parts.append(
            f'<path d="M{left} {y:.1f}h{wide}" stroke="#ddd"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f'{form(low + share * (most - low))}</text>'
            f'<text x="{left + share * wide:.1f}" y="{top + high + 18}" text-anchor="middle">'
            f'{round(1 + share * (count - 1))}</text>'
        )
    for k, (way, values) in enumerate(lines.items()):
        colour = f'hsl({k * 360 // len(lines)},70%,40%)'
        track = ' '.join(place(at, value) for at, value in enumerate(values))
        parts.append(
            f'<polyline points="{track}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
            f'<text x="{left + wide + 12}" y="{top + 14 + 18 * k}" fill="{colour}">{way}</text>'
        )


def chart(runs, network, path):
    """Draws the mean of each way over its seeds, and below it how much it differs from the runs of
    the same seeds without a codec."""
    logarithms, differences = {}, {}
    for way, by_seed in runs.items():
        means = [statistics.fmean(at) for at in zip(*by_seed.values())]
        plain = [statistics.fmean(at) for at in zip(*(runs['plain'][seed] for seed in by_seed))]
        logarithms[way] = [math.log10(mean) for mean in means]
        differences[way] = [100 * (mean / one - 1) for mean, one in zip(means, plain)]
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="910" height="600" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    panel(parts, logarithms, 30, 220, lambda value: f'{10**value:.3f}')
    panel(parts, differences, 320, 220, lambda value: f'{value:.2f} %')
    parts += [
        '<text x="56" y="18">loss on data that is not trained on, the mean over the seeds</text>',
        '<text x="56" y="308">its difference from the loss without a codec</text>',
        '<text x="416" y="576" text-anchor="middle">'
        f'{"epochs" if network == "digits" else "measurements"}</text></svg>',
    ]
    path.write_text('\n'.join(parts) + '\n', encoding='utf-8')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--network', choices=['digits', 'bytes'], default='digits')
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build')
    parser.add_argument('--epochs', type=int, default=67)
    parser.add_argument('--seeds', type=int, nargs='*', default=[1, 2, 3, 4, 5])
    parser.add_argument('--fp32', action='store_true')
    parser.add_argument('--ways', nargs='+', choices=WAYS, default=list(WAYS))
    parser.add_argument('--results', type=pathlib.Path)
    parser.add_argument('--label')
    parser.add_argument('--chart', type=pathlib.Path)
    parser.add_argument('arguments', nargs='*')
    options = parser.parse_args()
    label = options.label or options.network
    ways = ['plain', *(way for way in options.ways if way != 'plain')]
    known = known_runs(options.results, label)
    with tempfile.NamedTemporaryFile('w', suffix='.secret') as secret:
        secret.write(os.urandom(16).hex())
        secret.flush()
        for seed, way in itertools.product(options.seeds, ways):
            if seed in known.get(way, {}):
                continue
            losses = held_out_losses(options, way, seed, secret.name)
            known.setdefault(way, {})[seed] = losses
            if options.results:
                row = {'kind': 'codec losses', 'network': label, 'way': way, 'seed': seed}
                with options.results.open('a', encoding='utf-8') as file:
                    file.write(json.dumps({**row, 'losses': losses}) + '\n')
    if not known.get('plain'):
        sys.exit(f'codec_curves: no runs of the network {label} without a codec')
    runs = {  # a run counts if the same seed ran without a codec
        way: {seed: known[way][seed] for seed in known[way] if seed in known['plain']}
        for way in ways
        if known.get(way, {}).keys() & known['plain'].keys()
    }
    plain = runs['plain']
    if any(plain.get(seed, losses) != losses for seed, losses in runs.get('delta', {}).items()):
        sys.exit('codec_curves: the delta codec changed a loss')
    print('\n'.join(table(runs)))
    if options.chart:
        chart(runs, options.network, options.chart)


if __name__ == '__main__':
    main()
