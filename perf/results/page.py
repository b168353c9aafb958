#!/usr/bin/env python3
"""Writes docs/measured.md and its charts from the files beside this script.

page.py            writes the page and the charts (needs matplotlib, see docs/requirements.txt)
page.py --check    fails when the page differs from what the results say (needs no library)
"""

import pathlib
import statistics
import sys

from figures import BEHIND, load, newest, of_kind, ratio_text, size, span, table

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs/measured.md'
CHARTS = ROOT / 'docs/charts'
OPERATIONS = ('all_gather', 'reduce_scatter', 'all_reduce', 'broadcast')
MEMORIES = {'caller': "caller's memory", 'pool': 'pool', 'shared slot': 'shared slot'}
AXIS = 'FSCCL time / fastest\nother library (lower is better)'
LISTS = (
    "ResNet-50's 320 tensors, caller's memory, one list",
    "ResNet-50's 320 tensors, pool",
    "its 266 small tensors, caller's memory, one list",
    'its 266 small tensors, pool',
)

HEAD = """# Measured

This page compares FSCCL with other libraries. `perf/results/page.py` writes the page from the files
in [perf/results](../perf/results/README.md); do not edit it by hand.
"""


MOST_LINES = 160


def sources(rows):
    return ', '.join(sorted({f'{row["date"]} (`{row["commit"]}`)' for row in rows}))


def place(row):
    if row['hosts'] > 1:
        return f'{row["hosts"]} hosts, {row["ranks"]} ranks'
    return f'{row["ranks"]} ranks, {row.get("distance") or "distance not recorded"}'


def place_order(where):
    """Returns the key by which places are sorted: one host first, then by ranks and distance."""
    return 'hosts' in where, where


def matrix(rows, sizes):
    """Returns a table with one row for each operation and processor, and one column for each size.
    A cell has the ratios of pool and caller."""
    cells = {
        (row['operation'], row['cpu'], row.get('bytes'), row['memory']): row.get('ratio')
        for row in rows
    }
    memories = [name for name in ('pool', 'caller') if any(row['memory'] == name for row in rows)]
    cpus = sorted({row['cpu'] for row in rows})

    def cell(operation, cpu, count):
        texts = [ratio_text(cells.get((operation, cpu, count, memory))) for memory in memories]
        return ' / '.join(text or '-' for text in texts) if any(texts) else ''

    return table(
        ['operation', 'processor', *(size(count) for count in sizes)],
        [
            [name, cpu, *(cell(name, cpu, count) for count in sizes)]
            for name in OPERATIONS
            for cpu in cpus
        ],
    )


def place_of(row):
    return '' if row['memory'] == 'caller' else f' ({row["memory"]})'


def behind(rows):
    """Returns how many cases are behind, how many were compared, and the table of the former."""
    compared = [row for row in newest(rows) if row.get('ratio') is not None]
    late = sorted((row for row in compared if row['ratio'] > BEHIND), key=lambda row: -row['ratio'])
    places = sorted({place(row) for row in late}, key=place_order)
    processors = sorted({row['cpu'] for row in late})

    def cell(where, processor):
        return ', '.join(
            f'{row["operation"]} {"bf16 " if row.get("dtype") == "bf16" else ""}'
            f'{size(row.get("bytes"))}{place_of(row)} {row["ratio"]:.2f}'
            for row in late
            if (place(row), row['cpu']) == (where, processor)
        )

    lines = [[where, *(cell(where, processor) for processor in processors)] for where in places]
    return len(late), len(compared), table(['where', *processors], lines)


def summary(rows):
    """Returns a table with one row for each place and processor: the median, range and count of the
    ratios."""
    groups = {}
    for row in newest(rows):
        if row.get('ratio') is not None:
            memories = groups.setdefault((place(row), row['cpu']), {})
            memories.setdefault(row['memory'], []).append(row['ratio'])

    def cell(ratios):
        if not ratios:
            return ''
        late = sum(ratio > BEHIND for ratio in ratios)
        return f'{statistics.median(ratios):.2f} ({span(ratios)}), {late} of {len(ratios)}'

    return table(
        ['where', 'processor', *MEMORIES.values()],
        [
            [*key, *(cell(memories.get(name)) for name in MEMORIES)]
            for key, memories in sorted(
                groups.items(), key=lambda group: (place_order(group[0][0]), group[0][1])
            )
        ],
    )


# On these processors collectives between two hosts were measured with every size.
EVERY_SIZE = ('Zen 3', 'Zen 5')


def collectives_text(rows):
    calls = of_kind(rows, 'collective')
    late, compared, cases = behind(calls)
    text = [
        '## Behind',
        '',
        f'FSCCL takes over 5 % longer than the fastest other library in {late} of {compared} cases. '
        'Each case has its ratio. Its buffers are in a pool or a shared slot if the case says so, and else '
        'in memory of the caller.',
        '',
        *cases,
        '## Collectives',
        '',
        'Each cell has the median, the least and the largest ratio of its cases, and how many of them are '
        'more than 5 % behind. Only the newest figure of a case counts.',
        '',
        *summary(calls),
        '![Ratio to the fastest other library by size, two ranks on one host](charts/one_host.svg)',
        '',
        '![Ratio to the fastest other library by size, two hosts](charts/two_hosts.svg)',
        '',
    ]
    sizes = [8, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
    for hosts in (1, 2):
        chosen = [
            row
            for row in newest(calls)
            if row['hosts'] == hosts
            and row['ranks'] == 2
            and row.get('distance') == ('near' if hosts == 1 else None)
            and (hosts == 1 or row['cpu'] in EVERY_SIZE)
            and row.get('dtype') != 'bf16'
            and row['memory'] != 'shared slot'
        ]
        where = 'one host, cores near, pool / caller' if hosts == 1 else 'two hosts, caller'
        text += [f'Two ranks on {where}, {sources(chosen)}:', '']
        text += matrix(chosen, sizes if hosts == 1 else [*sizes[1:], 64 << 20, 256 << 20])
    lists = {row['what']: f'{row["ratio"]:.2f}' for row in of_kind(rows, 'list')}
    whole, whole_pool, small, small_pool = (lists[name] for name in LISTS)
    return [
        *text,
        'The ratio of one broadcast of a list of tensors to the fastest way of Intel MPI is '
        f"{whole} for the 320 tensors of ResNet-50 in caller's memory and {whole_pool} in a pool. It is "
        f"{small} and {small_pool} for ResNet-50's 266 small tensors alone.",
        '',
    ]


def step_cell(row):
    return f'{row["ms"]:.0f} ({row["ratio"]:.2f})' if row else ''


def step_text(rows):
    steps = of_kind(rows, 'step')
    lines = {}
    for row in steps:
        key = (row['wire'], row['gradients'])
        lines.setdefault(key, {})[row['cpu'], row['parameters']] = row
    cpus = sorted({row['cpu'] for row in steps}, reverse=True)
    cases = [(cpu, how) for cpu in cpus for how in ('gathered twice', 'kept')]
    others = ', '.join(
        f'{" or ".join(sorted({row["peer"] for row in steps if row["cpu"] == cpu}))} on {cpu}'
        for cpu in cpus
    )
    return [
        '## An FSDP step',
        '',
        'The table has the milliseconds of the communication of one training step of Llama-3.2-1B with two '
        'ranks, without computation. The ratio to the fastest other library is in parentheses; that library '
        f'is {others}. '
        'Parameters are *gathered twice*, for forward and for backward, or *kept* between the two. '
        "Gradients lie *in slots* of the unit or in the program's *private* memory.",
        '',
        *table(
            ['wire type', 'gradients', *(f'{cpu}, {how}' for cpu, how in cases)],
            [
                [*key, *(step_cell(cells.get(case)) for case in cases)]
                for key, cells in lines.items()
            ],
        ),
    ]


def pool_text(rows):
    pools = [row for row in of_kind(rows, 'pool') if 'pytorch' in row]
    worst = [row for row in of_kind(rows, 'pool') if 'bound_gib' not in row][0]
    irregular = max(max(row['unseen_then']) for row in of_kind(rows, 'pool irregular'))
    rmm = [value for row in of_kind(rows, 'pool peer') for value in row['over_live']]
    lines = [
        [
            row['trace'],
            f'{row["bound_gib"]:.2f}',
            f'{row["over_bound"]:.3f}',
            f'{row["pytorch"]:.2f}',
            f'{row["pytorch_expandable"]:.2f}',
        ]
        for row in pools
    ]
    event, slot, checks = of_kind(rows, 'nanoseconds')
    return [
        '## Memory of the pool',
        '',
        'The table has the reserved bytes divided by the lower bound of a trace, which is the sequence of '
        'slots of a training step. The largest value of 160 traces whose steps are all alike is '
        f'{worst["over_bound"]:.3f}. The largest value of a trace whose steps differ is {irregular:.3f} '
        f'after the pool has seen its steps. The pool of RMM reserves {span(rmm)} times the live bytes of '
        f'traces whose steps differ. Taking and giving back a slot takes {span(slot["ns"], 1)} ns; an '
        f'indexed array, the least that is possible, takes {span(slot["array_ns"], 1)} ns. Recording an '
        f'event in the flight recorder takes {span(event["ns"], 1)} ns. All checks of an operation that '
        f'does not sleep take {span(checks["ns"], 0)} ns.',
        '',
        *table(
            [
                'trace',
                'bound GiB',
                'FSCCL',
                "PyTorch's caching allocator (simulated)",
                'the same, expandable segments',
            ],
            lines,
        ),
    ]


def training_text(rows):
    lines = {}
    for row in of_kind(rows, 'training'):
        lines[row['system'], row['ranks']] = [
            row['system'],
            str(row['ranks']),
            span(row['gloo_over_fsccl']),
            row['cpu'],
            row['date'],
        ]
    memory = {}
    for row in of_kind(rows, 'training memory'):
        memory.setdefault(row['setting'], []).append(
            f'{row["ratio"]:.2f} with {row["ranks"]} ranks'
        )
    memory_text = '; '.join(
        f'{" and ".join(ratios)} ({setting})' for setting, ratios in memory.items()
    )
    return [
        '## PyTorch',
        '',
        'The table has the time of a training step over Gloo divided by the time over FSCCL, so above 1 '
        'FSCCL is faster. The model has 25 million parameters, in fp32, under PyTorch 2.15 '
        '(`perf/torch/systems.py`). *Fused* is FSDP2 with `fsccl_torch.fsdp2.enable()`.',
        '',
        *table(['system', 'ranks', 'Gloo / FSCCL', 'processor', 'date'], list(lines.values())),
        'The memory above the sharded state of a model of 110 million parameters was measured too. That of '
        f'fused FSDP2 over FSCCL divided by that of stock FSDP2 over Gloo is {memory_text}.',
        '',
    ]


def newest_of(rows, kind, *keys):
    """Returns the newest row of this kind by the values of the keys."""
    return {tuple(row[key] for key in keys): row for row in of_kind(rows, kind)}


def jax_text(rows):
    """Returns the text about JAX, from the newest figures of steps, starts and killed ranks."""
    newest_rows = newest_of(rows, 'jax', 'what', 'ranks')
    names = {
        'step': 'a step of FSDP, 50 M parameters',
        'gspmd': 'the same step, sharded by XLA (GSPMD)',
        'start': 'from the start of Python to the first sum',
    }
    lines, kills = [], []
    order = [*names, 'kill']
    for what, ranks in sorted(newest_rows, key=lambda key: (order.index(key[0]), key[1])):
        row = newest_rows[what, ranks]
        if what == 'kill':
            known, ended = row['known_ms'], row['ended_ms']
            kills.append(
                f'With {ranks} ranks the programs of the other ranks have the error {known[0]:g} ms (median) '
                f'and {known[1]:g} ms (99th percentile) after the kill; the kernel has ended the killed process '
                f'after {ended[0]:g} ms and {ended[1]:g} ms ({row["rounds"]} rounds, load '
                f'{span(row["load"], 0)}).'
            )
            continue
        cells = [
            f'{statistics.median(row[name]):.2f} ({span(row[name])})' if name in row else ''
            for name in ('xla_over_gloo', 'own_over_gloo')
        ]
        milliseconds = f'{statistics.median(row["gloo_ms"]):.0f} ms'
        rounds, load = str(len(row['gloo_ms'])), span(row['load'], 0)
        lines.append([names[what], milliseconds, *cells, rounds, load, row['cpu']])
    return [
        '## JAX',
        '',
        'Two processes ran JAX 0.10.2 in fp32 ([jax.md](jax.md)). The column *Gloo* has the time over '
        'Gloo. The next two columns have the time over FSCCL divided by that over Gloo in the same round, '
        'as median and range (`perf/jax/rounds.py`). *Load* is the load average of the machine.',
        '',
        *table(
            ['what', 'Gloo', "XLA's collectives", "FSCCL's own", 'rounds', 'load', 'processor'],
            lines,
        ),
        start_phases(newest_rows) + f'`perf/jax/kills.py` kills one process. {" ".join(kills)}',
        '',
    ]


def start_phases(newest_rows):
    """Returns a sentence with the two longest phases of JAX's start, if a row has them."""
    phases = [row['phases_ms'] for row in newest_rows.values() if 'phases_ms' in row]
    if not phases:
        return ''
    forms = phases[-1].values()
    imports, compiles = ([form[phase] for form in forms] for phase in ('import', 'compile'))
    return f'Imports take {span(imports, 0)} ms of the start, and compiling takes {span(compiles, 0)} ms. '


def start_text(rows):
    starts = {}
    for row in newest_of(rows, 'start', 'ranks', 'over', 'as').values():
        times = starts.setdefault((row['ranks'], row['as']), {})
        processor = row['cpu'] if row['cpu'].startswith('Zen') else row['processor']
        times[row['over']] = f'{span(row["communicator_s"])} s ({processor})'
    networks = ('shared memory', 'TCP', 'UCX')
    failures = []
    for row in of_kind(rows, 'failure'):
        names = ('kill_ms', 'kill_at_work_ms', 'abort_ms', 'stop_to_suspect_ms')
        failures.append([row['over'], *(f'{row[name][0]:g}, {row[name][1]:g}' for name in names)])
    shrinks = ', '.join(
        f'on {"one host" if row["hosts"] == 1 else "two hosts"} the median is '
        f'{span(row["p50_ms"], 0)} ms and the worst {row["worst_ms"]} ms'
        for row in newest_of(rows, 'shrink', 'hosts').values()
    )
    soak = of_kind(rows, 'soak')[-1]
    return [
        '## Start and failures',
        '',
        'The table has the time until all ranks have their communicator, on two cores of the named '
        'processor.',
        '',
        *table(
            ['ranks', *networks],
            [
                [f'{ranks} {kind}', *(times.get(network, '') for network in networks)]
                for (ranks, kind), times in sorted(starts.items())
            ],
        ),
        'The next table has the milliseconds (median, 99th percentile) until all of 8 ranks know that one '
        'of them was killed, was killed in an all-reduce, has called `fsccl_comm_abort()`, or was stopped '
        'by SIGSTOP, which makes it a suspect.',
        '',
        *table(
            ['over', 'killed', 'killed in an all-reduce', 'abort', 'stopped'],
            failures,
        ),
        'When 1 of 64 ranks is killed, the other 63 shrink the communicator and run an all-gather. From '
        f'the kill to the result {shrinks}. In a run of {soak["minutes"]} minutes, {soak["jobs"]} jobs '
        f'lost a rank: {soak["wrong"]} results were wrong, {soak["descriptors"]} file descriptors leaked, '
        f'and {soak["allocated_kib"]} KiB more were allocated at the end than at the start.',
        '',
    ]


def page(rows):
    text = [
        HEAD,
        '- A *ratio* is the time of FSCCL divided by the time of the fastest other library in the same '
        'interleaved runs. **Below 1, FSCCL is faster**; a case is *behind* (bold) if it is above 1.05. The '
        'other libraries on one host are those of Intel MPI 2021, Open MPI 4 or 5, MPICH 5 and oneCCL '
        'that ran in the series. On two hosts they are Open MPI 4.1 over TCP and over UCX.',
        '- *Two hosts* are two network namespaces on one virtual machine, joined by a virtual link. '
        'Latency and bandwidth of a real network are not measured.',
        '- All machines are shared virtual machines with two cores, so expect other absolute times. The '
        'two cores are *near* if a signal from one to the other takes about 50 ns, and *far* if it takes '
        'about 250 ns. On Emerald Rapids all signals take about 170 ns, which counts as near. The distance '
        'can change while a machine runs.',
        '- The buffers of FSCCL are blocks of a *pool*, or other memory of the process, the '
        "*caller's memory*. With a *shared slot* a host has one copy of the result, which all its ranks map.",
        '- Several GPUs, RDMA and more than two cores were not measured. [gpu.md](gpu.md) has figures of one '
        'GPU.',
        '',
        *collectives_text(rows),
        *step_text(rows),
        *pool_text(rows),
        *training_text(rows),
        *jax_text(rows),
        *start_text(rows),
    ]
    return '\n'.join(text).rstrip() + '\n'


def draw(rows):
    try:
        import matplotlib
    except ImportError:
        sys.exit('page.py: the charts need matplotlib: pip install -r docs/requirements.txt')
    matplotlib.use('svg')
    matplotlib.rcParams.update({'svg.hashsalt': 'fsccl', 'svg.fonttype': 'none', 'font.size': 9})
    from matplotlib import pyplot

    def ratio_axes(axes, title):
        axes.set_xscale('log', base=2)
        axes.set_yscale('log')
        axes.set_ylim(0.02, 2)
        axes.set_yticks([0.05, 0.1, 0.2, 0.5, 1, 2], ['0.05', '0.1', '0.2', '0.5', '1', '2'])
        axes.minorticks_off()
        ticks = [64, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20]
        axes.set_xticks(ticks, [size(tick) for tick in ticks], rotation=30, ha='right')
        axes.axhline(1, color='#b03030', linewidth=1)
        axes.grid(alpha=0.3)
        axes.set_title(title, fontsize=9)

    def series(axes, chosen, label, **style):
        points = sorted(
            (row['bytes'], row['ratio'])
            for row in chosen
            if row.get('bytes') and row.get('ratio') is not None
        )
        if points:
            axes.plot(*zip(*points), label=label, marker='o', markersize=3, **style)

    def save(figure, name):
        CHARTS.mkdir(exist_ok=True)
        figure.savefig(CHARTS / name, metadata={'Date': None, 'Creator': None}, facecolor='white')
        pyplot.close(figure)

    latest = newest(of_kind(rows, 'collective'))
    colors = {
        'Zen 3': '#2a6f97',
        'Zen 4': '#e07a1f',
        'Zen 5': '#8a5fa8',
        'Emerald Rapids': '#4f8a3d',
    }

    def grid(name, variants, ylabel):
        figure, panels = pyplot.subplots(1, 4, figsize=(11, 3), sharey=True, layout='constrained')
        for axes, operation in zip(panels, OPERATIONS):
            ratio_axes(axes, operation)
            for label, test, style in variants:
                chosen = [
                    row
                    for row in latest
                    if row['operation'] == operation and row.get('dtype') != 'bf16' and test(row)
                ]
                series(axes, chosen, label, **style)
        panels[0].set_ylabel(ylabel)
        handles = {}
        for axes in panels:
            for handle, label in zip(*axes.get_legend_handles_labels()):
                handles.setdefault(label, handle)
        figure.legend(handles.values(), handles, loc='outside lower center', ncols=4, frameon=False)
        save(figure, name)

    def case(cpu, memory, distance, hosts, ranks=2):
        return lambda row: (
            (row['cpu'], row['memory'], row.get('distance'), row['hosts'], row['ranks'])
            == (cpu, memory, distance, hosts, ranks)
        )

    one_host = [
        (
            f'{cpu}, {MEMORIES[memory]}',
            case(cpu, memory, 'near', 1),
            {'color': colors[cpu], 'linestyle': '-' if memory == 'pool' else '--'},
        )
        for cpu in colors
        for memory in ('pool', 'caller')
    ]
    grid('one_host.svg', one_host, AXIS)
    two_hosts = [
        (cpu, case(cpu, 'caller', None, 2), {'color': color}) for cpu, color in colors.items()
    ]
    grid('two_hosts.svg', two_hosts, AXIS)

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout='constrained')
    groups = (
        ('one host, 2 ranks, pool (Intel MPI, Open MPI, oneCCL)', case('Zen 3', 'pool', 'near', 1)),
        ('two namespaces over TCP (Open MPI: TCP, UCX)', case('Zen 3', 'caller', None, 2)),
    )
    for axes, (title, test) in zip(panels, groups):
        ratio_axes(axes, title)
        for operation, color in zip(OPERATIONS, ('#2a6f97', '#e07a1f', '#4f8a3d', '#8a4f9e')):
            chosen = [
                row
                for row in latest
                if row['operation'] == operation and row.get('dtype') != 'bf16' and test(row)
            ]
            series(axes, chosen, operation, color=color)
    panels[0].set_ylabel(AXIS)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc='outside lower center', ncols=4, frameon=False
    )
    save(figure, 'summary.svg')


def main():
    rows = load()
    if (lines := page(rows).count('\n')) > MOST_LINES:
        sys.exit(f'docs/measured.md would have {lines} lines, {MOST_LINES} are allowed')
    if sys.argv[1:] == ['--check']:
        if not PAGE.exists() or PAGE.read_text('utf-8') != page(rows):
            sys.exit('docs/measured.md differs from perf/results: run perf/results/page.py')
        return
    PAGE.write_text(page(rows), 'utf-8')
    draw(rows)


if __name__ == '__main__':
    main()
