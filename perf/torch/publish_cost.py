#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what it costs to publish the weights of every step (docs/publish.md), by learning rate:
the bytes as a part of a plain bf16 copy, and the processor time as a part of that of the ranks'
step.

  publish_cost.py [--rates 3e-4,1e-4,3e-5,1e-5,3e-6] [--ranks 2] [--width 256] [--layers 6]
                  [--json FILE] [--chart FILE.svg]
  publish_cost.py --draw FILE.json --chart FILE.svg

The script trains the transformer of delta_entropy.py with FSDP2 (AdamW, fp32 parameters, bf16
gathers) on the sources of Python's standard library, first --warm steps at --warm-rate, then
--steps at each rate, while another process receives every version. The processor time of a step is
that of the rank's process. The processor time of publishing is that of the thread in publish(),
including its Python part, and that of the library's thread which serves the subscriber
(fsccl_publish_report_t). A whole copy takes from the subscriber's call to its first version; an
update takes from the begin of publish() on the rank that began last to the subscriber's tensors.

The exit status is 1 if a limit is exceeded at the rate 1e-5.
"""

import argparse
import json
import os
import statistics
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import fsccl_torch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from delta_entropy import Bytes, load_text
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

LIMITS = {'bytes': 0.15, 'processor time': 0.02}  # the limits that publishing must keep
AT = 1e-5  # the rate at which it must keep them


def make_model(options):
    torch.manual_seed(0)
    return Bytes(options.width, options.layers, options.length)


def train(rank, options, folder, pipe):
    torch.set_num_threads(1)
    dist.init_process_group(
        'fsccl', init_method=f'file://{folder}/store', rank=rank, world_size=options.ranks
    )
    text, model = load_text(options.text), make_model(options)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    generator = torch.Generator().manual_seed(rank)
    lines = []
    rates = [options.warm_rate] * options.warm
    rates += [rate for rate in options.rates for _ in range(options.steps)]
    serving_s = 0.0
    for step, rate in enumerate(rates):
        begin_s = time.process_time()
        for group in optimizer.param_groups:
            group['lr'] = rate
        at = torch.randint(len(text) - options.length - 1, (options.batch,), generator=generator)
        tokens = torch.stack([text[i : i + options.length + 1] for i in at]).long()
        loss = F.cross_entropy(model(tokens[:, :-1]).reshape(-1, 256), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        publish_s, began_s = time.thread_time(), time.monotonic()
        publisher = fsccl_torch.publish(model, step, ticket=f'{folder}/ticket', linger=60)
        publish_s = time.thread_time() - publish_s
        report = publisher.report()
        if step == 0:
            while publisher.report()['subscribers'] == 0:
                time.sleep(0.1)
        elif step >= options.warm:
            lines.append(
                {
                    'step': step,
                    'rate': rate,
                    'rank': rank,
                    'loss': round(loss.item(), 3),
                    'record_bytes': report['record_bytes'],
                    'plain_bytes': report['words_bytes'],
                    'step_cpu_s': round(time.process_time() - begin_s, 5),
                    'publish_cpu_s': round(publish_s, 5),
                    'serving_cpu_s': round(report['serving_cpu_s'] - serving_s, 5),
                    'began_s': began_s,
                }
            )
        serving_s = report['serving_cpu_s']
    publisher.close()
    pipe.send(lines)
    dist.destroy_process_group()


def receive(options, folder, pipe):
    torch.set_num_threads(1)
    while not os.path.exists(f'{folder}/ticket'):
        time.sleep(0.05)
    state = make_model(options).to(torch.bfloat16).state_dict()
    arrived_s, begin_s = {}, time.monotonic()
    with fsccl_torch.subscribe(state, ticket=f'{folder}/ticket') as weights:
        try:
            while True:
                version = weights.update(timeout=None)
                if version is not None:
                    arrived_s[version.label] = time.monotonic()
        except fsccl_torch.FscclError:
            pipe.send(
                {
                    **weights.report(),
                    'updates': len(arrived_s),
                    'whole_copy_s': min(arrived_s.values(), default=begin_s) - begin_s,
                    'arrived_s': arrived_s,
                }
            )


def run(options):
    context = mp.get_context('spawn')
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for target in [*(lambda rank=r: rank for r in range(options.ranks)), None]:
            here, there = context.Pipe()
            arguments = (
                (options, folder, there) if target is None else (target(), options, folder, there)
            )
            process = context.Process(target=receive if target is None else train, args=arguments)
            process.start()
            pipes.append(here)
            processes.append(process)
        answers = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join()
    return {
        'parameters': sum(parameter.numel() for parameter in make_model(options).parameters()),
        'ranks': options.ranks,
        'tokens_per_rank': options.batch * options.length,
        'lines': [line for answer in answers[:-1] for line in answer],
        'subscriber': answers[-1],
    }


def table(result):
    """Returns for each rate the share of bytes, that of processor time, and that of the calling
    thread alone."""
    rows = []
    for rate in sorted({line['rate'] for line in result['lines']}, reverse=True):
        lines = [line for line in result['lines'] if line['rate'] == rate]

        def total(key, lines=lines):
            return sum(line[key] for line in lines)

        cpu_s, thread_s = total('step_cpu_s'), total('publish_cpu_s')
        rows.append(
            {
                'rate': rate,
                'bytes': total('record_bytes') / total('plain_bytes'),
                'processor time': (thread_s + total('serving_cpu_s')) / cpu_s,
                'thread': thread_s / cpu_s,
            }
        )
    return rows


def update_seconds(result):
    """Returns the time of each update, {step: seconds}."""
    began = {}
    for line in result['lines']:
        began[line['step']] = max(began.get(line['step'], 0), line['began_s'])
    arrived = {int(step): at for step, at in result['subscriber']['arrived_s'].items()}
    return {step: arrived[step] - at for step, at in began.items() if step in arrived}


def panel(rows, key, title, left, top=40, wide=360, high=240):
    most = max([LIMITS[key] * 1.2] + [row[key] * 1.1 for row in rows])
    parts = [f'<text x="{left}" y="{top - 16}" font-size="13">{title}</text>']
    for part in range(5):
        y = top + high * (1 - part / 4)
        parts.append(
            f'<path d="M{left} {y:.1f}h{wide}" stroke="#ddd"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f'{100 * most * part / 4:.1f} %</text>'
        )
    each = wide / len(rows)
    for index, row in enumerate(rows):
        bar = high * row[key] / most
        colour = '#1f77b4' if row['rate'] == AT else '#9ec5e8'
        x = left + each * index
        parts.append(
            f'<rect x="{x + each * 0.2:.1f}" y="{top + high - bar:.1f}" width="{each * 0.6:.1f}" '
            f'height="{bar:.1f}" fill="{colour}"/>'
            f'<text x="{x + each / 2:.1f}" y="{top + high - bar - 4:.1f}" text-anchor="middle">'
            f'{100 * row[key]:.2g} %</text>'
            f'<text x="{x + each / 2:.1f}" y="{top + high + 16}" text-anchor="middle">'
            f'{row["rate"]:.0e}</text>'
        )
    y = top + high * (1 - LIMITS[key] / most)
    parts.append(
        f'<path d="M{left} {y:.1f}h{wide}" stroke="#d62728" stroke-dasharray="5 3"/>'
        f'<text x="{left + wide}" y="{y - 4:.1f}" fill="#d62728" text-anchor="end">'
        f'{100 * LIMITS[key]:.0f} %, to be kept at {AT:.0e}</text>'
        f'<text x="{left + wide / 2}" y="{top + high + 34}" text-anchor="middle">'
        'learning rate</text>'
    )
    return parts


def chart(result, path):
    rows = table(result)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="920" height="330" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>',
        *panel(rows, 'bytes', 'bytes of a step, of a plain bf16 copy', 70),
        *panel(rows, 'processor time', 'processor time for publishing, of a step', 530),
        '</svg>',
    ]
    Path(path).write_text('\n'.join(parts) + '\n', encoding='utf-8')


def tell(result):
    print(
        f'{result["parameters"]:,} parameters, {result["ranks"]} ranks, '
        f'{result["tokens_per_rank"]} tokens a rank and step'
    )
    for row in table(result):
        print(
            f'rate {row["rate"]:.0e}: {row["bytes"]:.3f} of the bytes, '
            f'{100 * row["processor time"]:.2f} % of the processor time '
            f'({100 * row["thread"]:.2f} % in the calling thread)'
        )
    got = result['subscriber']
    if 'arrived_s' in got:
        plain_mb = got['words_bytes'] / 1e6
        print(
            f'whole copy ({plain_mb:.0f} MB): {got["whole_copy_s"]:.3f} s; update: '
            f'{statistics.median(update_seconds(result).values()):.3f} s (median)'
        )
    words = got['versions'] * got['words_bytes'] / 2
    print(
        f'subscriber: {got["versions"]} versions, {got["updates"]} updates, '
        f'{1e9 * got["apply_cpu_s"] / words:.2f} ns of processor time a word and version'
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--text', default=sysconfig.get_paths()['stdlib'])
    parser.add_argument('--rates', default='3e-4,1e-4,3e-5,1e-5,3e-6')
    parser.add_argument('--warm-rate', type=float, default=3e-4)
    for name, default in {
        'ranks': 2,
        'width': 256,
        'layers': 6,
        'length': 256,
        'batch': 8,
        'warm': 20,
        'steps': 5,
    }.items():
        parser.add_argument(f'--{name}', type=int, default=default)
    parser.add_argument('--draw', help='a file of --json: nothing is measured')
    parser.add_argument('--json')
    parser.add_argument('--chart')
    options = parser.parse_args()
    options.rates = [float(rate) for rate in options.rates.split(',')]
    if options.draw:
        result = json.loads(Path(options.draw).read_text(encoding='utf-8'))
    else:
        result = run(options)
    tell(result)
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + '\n', encoding='utf-8')
    if options.chart:
        chart(result, options.chart)
    for row in table(result):
        for what, most in LIMITS.items():
            if row['rate'] == AT and row[what] > most:
                sys.exit(f'publish_cost: {what} at rate {AT:.0e}: {row[what]:.4f}, above {most}')


if __name__ == '__main__':
    main()
