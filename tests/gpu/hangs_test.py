#!/usr/bin/env python3
"""Tests tests/gpu/run and perf/gpu/run on an imitated machine (commands_test.py) on which programs
hang. A hang costs no more than the program's own time, and results from before it count. Also tests
the order of programs, and the variables that they get.
"""

import importlib.machinery
import importlib.util
import pathlib

from commands_test import (
    ROOT,
    expect,
    gtest,
    machine,
    main,
    pool,
    run,
    script,
    slot,
    torch,
    verdicts,
)


def hanging(path, lines):
    """Makes a program that prints the lines and does not end. It also starts a process that does
    not end, and writes that process's number into a file beside itself."""
    script(
        path,
        '\n'.join(
            [*(f"echo '{line}'" for line in lines), f'sleep 1000 & echo $! >{path}.child', 'wait']
        ),
    )


def child_has_ended(path):
    number = pathlib.Path(f'{path}.child').read_text(encoding='utf-8').strip()
    state = pathlib.Path('/proc', number, 'stat')
    return not state.exists() or ') Z ' in state.read_text(encoding='utf-8')


def check_hang_in_tests(folder):
    """A hang costs only the program's own time. The cases before it count, and the programs after
    it run."""
    build = machine(folder)
    hanging(
        build / 'tests/gpu/gpu_unit_test',
        [
            '[ RUN      ] S.a',
            '[       OK ] S.a (1 ms)',
            '[ RUN      ] P/S.b/0',
            '[  FAILED  ] P/S.b/0, where GetParam() = 3 (1 ms)',
            '[ RUN      ] S.c',
            '[  SKIPPED ] S.c (1 ms)',
            '[ RUN      ] S.d',
        ],
    )
    hanging(build / 'tests/gpu/gpu_collectives_test', [])
    gtest(build / 'tests/gpu/gpu_failures_test', ('e', ''))
    script(
        folder / 'made-python',
        """case "$*" in *"-c import torch"*) echo "2.11.0|" ;; *units_test*)
printf 'tests/gpu/units_test.py::test_a[1] PASSED [ 50%%]\\ntests/gpu/units_test.py::test_a[2] '; sleep 1000 ;; esac""",
    )
    status, lines = run(
        'tests/gpu/run',
        folder,
        '--build',
        build,
        '--python',
        folder / 'made-python',
        '--seconds',
        '2',
    )
    counted = [line for line in lines if line.startswith(('ok', 'FAIL'))]
    for text in (
        'FAIL tests/gpu/gpu_unit_test: 1 passed, 2 failed, 1 skipped',
        'FAIL tests/gpu/gpu_collectives_test: 0 passed, 1 failed',
        'ok   tests/gpu/gpu_failures_test: 1 passed',
        'FAIL units_test.py: 1 passed, 1 failed',
    ):
        expect(any(line.startswith(text) for line in counted), f'{text}? {lines}')
    for text in (
        'failed: P/S.b/0',
        'failed: S.d (it did not end)',
        'failed: units_test.py::test_a[2] (it did not end)',
    ):
        expect(text in lines, f'{text}? {lines}')
    expect(
        status == 1 and child_has_ended(build / 'tests/gpu/gpu_unit_test'),
        'what it started has ended, too',
    )


def check_order_and_environment(folder):
    """Units and collectives run first, then Python, whose torch is looked up once, then the rest.
    Also checks the variables for CUDA."""
    build = machine(folder)
    for name in ('gpu_pool_test', 'gpu_unit_test', 'gpu_collectives_test'):
        gtest(build / 'tests/gpu' / name, ('a', ''))
        with open(build / 'tests/gpu' / name, 'a', encoding='utf-8') as file:
            file.write(
                'exit $((32 - CUDA_DEVICE_MAX_CONNECTIONS + 32 - CUDA_DEVICE_MAX_COPY_CONNECTIONS '
                '+ 40 - TEST_SECONDS))\n'
            )
        text = (build / 'tests/gpu' / name).read_text(encoding='utf-8').replace('exit 0\n', '')
        (build / 'tests/gpu' / name).write_text(text, encoding='utf-8')
    script(
        folder / 'made-python',
        f"""case "$*" in *"-c import torch"*) echo asked >>{folder}/asked; echo "2.11.0|" ;; esac""",
    )
    (build / 'tests/gpu/gpu_unit_test').chmod(0o644)
    script(build / 'tools/fsccl-info', '[ "$1" = devices ] && echo "a device of this machine"')
    _, lines = run('tests/gpu/run', folder, '--build', build, '--python', folder / 'made-python')
    begun = [line.split()[1].rstrip(':') for line in lines if line.startswith(('ok', 'FAIL'))]
    expect(
        begun
        == [
            'tests/gpu/gpu_unit_test',
            'tests/gpu/gpu_collectives_test',
            'units_test.py',
            'fsdp2_test.py',
            'torch_test.py',
            'tests/gpu/gpu_pool_test',
        ],
        f'the order: {begun} of {lines}',
    )
    expect(
        all(
            any(line.startswith(f'ok   tests/gpu/{name}') for line in lines)
            for name in ('gpu_unit_test', 'gpu_collectives_test', 'gpu_pool_test')
        ),
        f'what CUDA and tests are told: {lines}',
    )
    expect((folder / 'asked').read_text(encoding='utf-8') == 'asked\n', 'torch is looked for once')
    first = lines[: lines.index('a device of this machine') + 1]
    expect(
        'compute mode Default, MIG Disabled, glibc' in first[0]
        and 'tests/gpu/gpu_unit_test: made executable' in first,
        f'what comes first: {first}',
    )


def check_hang_in_measurements(folder):
    """The output of a program that hangs counts, and the program does not run again. The others do,
    gather_gpu as the second."""
    build = machine(folder)
    hanging(
        build / 'perf/gpu/kernels_gpu',
        [
            '{"case": "cast_64_mib", "bytes": 100663296, "us": 40, "ratio_to_copy": 0.95}',
            '{"case": "cut sho',
        ],
    )
    pool(build, slot(1, 90, 1800))
    script(build / 'perf/gpu/gather/gather_gpu', """echo '{"case": "g", "ratio_to_copy": 0.97}'""")
    status, lines = run(
        'perf/gpu/run', folder, '--build', build, '--python', 'no-python', '--seconds', '1'
    )
    found = verdicts(lines)
    expect(
        status == 0
        and all(
            found.get(what) == 'PASS'
            for what in (
                'cast_64_mib: of the copy bandwidth',
                'gather by p2p, 2 ranks: of a copy of as many bytes',
                'planned take + give back: of cudaMallocAsync, at worst',
            )
        ),
        f'the table: {found}',
    )
    expect('missing: kernels_gpu: it did not end in time' in lines, f'it is named: {lines}')
    rows = [line.split('"')[3] for line in lines if line.startswith(('{"case"', '{"what"'))]
    expect(
        rows == ['cast_64_mib', 'cut sho', 'g', 'planned slot', 'g', 'planned slot'],
        f'the order: {rows}',
    )
    expect(child_has_ended(build / 'perf/gpu/kernels_gpu'), 'what it started has ended, too')
    hanging(build / 'perf/gpu/pool_gpu', [])
    status, lines = run(
        'perf/gpu/run',
        folder,
        '--build',
        build,
        '--python',
        torch(folder, [], {}),
        '--seconds',
        '1',
    )
    expect(
        status == 0 and 'missing: pool_gpu --steps: it did not end in time' in lines,
        f'the steps hang: {lines}',
    )


def check_second_turn(folder):
    """A second turn comes if more than 40 % of the time is left."""
    loader = importlib.machinery.SourceFileLoader('perf_run', str(ROOT / 'perf/gpu/run'))
    command = importlib.util.module_from_spec(importlib.util.spec_from_loader('perf_run', loader))
    loader.exec_module(command)
    script(folder / 'perf/gpu/kernels_gpu', 'exit 0')
    for left, times in ((0.5, 2), (0.3, 1)):
        session = command.Session(1, 1)
        ran = []
        session.left, session.run = (
            (lambda part=left: part),
            (lambda name, *_, ran=ran: ran.append(name)),
        )
        command.measure(session, folder, None, 'no torch', {})
        expect(
            ran == ['kernels_gpu'] * times
            and ('the second turn' in session.missing) == (times == 1),
            f'{left} left: {ran}',
        )


if __name__ == '__main__':
    main(
        check_hang_in_tests,
        check_order_and_environment,
        check_hang_in_measurements,
        check_second_turn,
    )
