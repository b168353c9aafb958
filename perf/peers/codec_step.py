#!/usr/bin/env python3
"""Measures the gathers of FSDP steps between two hosts with and without a codec: `fsccl-perf step
--codec delta` in two network namespaces of this machine, at some rates of the link between them.

  codec_step.py [--build build] [--rates 1gbit 10gbit none] [--repeats 1] [--results FILE.jsonl]
                [--chart FILE.svg] [-- OPTIONS OF fsccl-perf step]

The rows of a rate are from one run, in which the three ways take turns step by step. They are
appended to the file of results; with --repeats 0 nothing is measured, and the chart shows what the
file has: for each rate, how many times faster than plain the gathers of a step are, by the medians
of the repeats. The script needs the right to make namespaces (tests/hosts/hosts.py).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HOSTS = os.path.join(ROOT, 'tests', 'hosts', 'hosts.py')
TIMEOUT_S = 900


def rank_commands(options):
    """Yields the command of each rank, one for each host. This runs inside hosts.py, which names
    the namespaces in TEST_HOSTS."""
    names = os.environ['TEST_HOSTS'].split(',')
    if not names[0].startswith('/'):
        sys.exit('codec_step: the kernel gives no network namespaces here')
    program = os.path.join(options.build, 'perf', 'fsccl-perf')
    for rank, name in enumerate(names):
        words = {
            'RANK': rank,
            'WORLD_SIZE': len(names),
            'LOCAL_RANK': 0,
            'LOCAL_WORLD_SIZE': 1,
            'MASTER_ADDR': '10.119.0.1',
            'MASTER_PORT': 29517,
        }
        yield [
            'nsenter',
            f'--net={name}',
            'env',
            *(f'{key}={value}' for key, value in words.items()),
            program,
            'step',
            '--codec',
            'delta',
            '--json',
            *options.options,
        ]


def measured(options, rate):
    """Returns the rows of one run."""
    limit = [] if rate == 'none' else ['--rate', rate]
    command = [sys.executable, HOSTS, '--hosts', '2', *limit, '--', sys.executable, __file__]
    command += ['--build', options.build, '--', *options.options]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f'codec_step: the run at {rate} failed')
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]
    return [{'kind': 'codec gathers', 'rate': rate, **row} for row in rows]


def medians(rows):
    """Returns {rate: {way: (ms of the gathers, ms of the step, times fewer bytes)}}."""
    found = {}
    for row in rows:
        found.setdefault(row['rate'], {}).setdefault(row['gathers'], []).append(row)
    return {
        rate: {
            way: (
                statistics.median(row['median_us'] for row in of_way) / 1000,
                statistics.median(row['step_us'] for row in of_way) / 1000,
                statistics.median(row['fewer_bytes'] for row in of_way),
            )
            for way, of_way in ways.items()
        }
        for rate, ways in found.items()
    }


def tell(found):
    print(f'{"link":>8} {"gathers":>12} {"ms":>9} {"faster":>7} {"step ms":>9} {"fewer bytes":>12}')
    for rate, ways in found.items():
        for way, (ms, step_ms, fewer) in ways.items():
            faster = ways['plain'][0] / ms
            print(f'{rate:>8} {way:>12} {ms:9.1f} {faster:7.2f} {step_ms:9.1f} {fewer:12.2f}')


def chart(found, path):
    """Draws for each rate a bar for each way: how many times faster than plain its gathers are."""
    left, top, high, each = 60, 40, 240, 240
    most = max(ways['plain'][0] / ms for ways in found.values() for ms, _, _ in ways.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + each * len(found) + 20}" '
        'height="330" font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{left}" y="20">times faster than plain gathers, between two hosts</text>'
    ]
    for k, (rate, ways) in enumerate(found.items()):
        begin = left + each * k
        for at, (way, (ms, _, _)) in enumerate(ways.items()):
            faster = ways['plain'][0] / ms
            bar = high * faster / most
            colour = ('#9aa5b1', '#7fb2e5', '#1f77b4')[at % 3]
            middle = begin + 70 * at + 35
            parts.append(
                f'<rect x="{begin + 70 * at + 8}" y="{top + high - bar:.1f}" width="54" '
                f'height="{bar:.1f}" fill="{colour}"/>'
                f'<text x="{middle}" y="{top + high - bar - 5:.1f}" text-anchor="middle">'
                f'{faster:.1f} ({ms:.0f} ms)</text>'
                f'<text x="{middle}" y="{top + high + 16}" text-anchor="middle">{way}</text>'
            )
        name = 'no limit' if rate == 'none' else rate.replace('gbit', ' Gbit/s')
        parts.append(
            f'<text x="{begin + 105}" y="{top + high + 36}" text-anchor="middle">{name}</text>'
        )
    path.write_text('\n'.join(parts) + '</svg>\n', encoding='utf-8')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('--rates', nargs='+', default=['1gbit', '10gbit', 'none'])
    parser.add_argument('--repeats', type=int, default=1)
    parser.add_argument('--results', type=pathlib.Path)
    parser.add_argument('--chart', type=pathlib.Path)
    parser.add_argument('options', nargs='*')
    options = parser.parse_args()
    if 'TEST_HOSTS' in os.environ:
        running = [subprocess.Popen(command) for command in rank_commands(options)]
        sys.exit(max(process.wait(TIMEOUT_S) != 0 for process in running))
    rows = []
    if options.results and options.results.exists():
        lines = options.results.read_text(encoding='utf-8').splitlines()
        rows = [row for row in map(json.loads, lines) if row.get('kind') == 'codec gathers']
    with tempfile.NamedTemporaryFile('w', suffix='.secret') as secret:
        secret.write(os.urandom(16).hex())
        secret.flush()
        os.environ['FSCCL_JOB_SECRET_FILE'] = secret.name
        for _ in range(options.repeats):
            for rate in options.rates:
                new = measured(options, rate)
                rows += new
                if options.results:
                    with options.results.open('a', encoding='utf-8') as file:
                        file.writelines(json.dumps(row) + '\n' for row in new)
    if not rows:
        sys.exit('codec_step: nothing was measured')
    tell(medians(rows))
    if options.chart:
        chart(medians(rows), options.chart)


if __name__ == '__main__':
    main()
