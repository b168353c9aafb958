#!/usr/bin/env python3
"""Tests tests/gpu/run, perf/gpu/run, tests/gpu/proof and tools/pack_gpu on an imitated machine: a
folder with an nvidia-smi and a build of small scripts. The tests check which cases these commands
count, skip and refuse. No GPU is needed.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
XML = '<testsuites><testsuite name="S">{}</testsuite></testsuites>'
CASE = '<testcase name="{0}" status="run" result="completed" classname="S">{1}</testcase>'


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n{text}\n', encoding='utf-8')
    path.chmod(0o755)


def gtest(path, *cases, status=0):
    text = XML.format(''.join(CASE.format(name, inside) for name, inside in cases))
    script(path, f"cat >${{GTEST_OUTPUT#xml:}} <<'END'\n{text}\nEND\nexit {status}")


def expect(condition, what):
    if not condition:
        sys.exit(what)


def run(command, folder, *arguments):
    env = {name: value for name, value in os.environ.items() if name not in ('TEST_SECONDS', 'OUT')}
    env.update(PATH=f'{folder / "bin"}:{os.environ["PATH"]}')
    done = subprocess.run(
        [ROOT / command, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=env,
        timeout=100,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()


def machine(folder, smi='echo "A GPU, 80000 MiB, 580.1, Default, Disabled"'):
    script(folder / 'bin/nvidia-smi', smi)
    build = folder / 'build'
    build.mkdir()
    (build / 'libfsccl.so.0').write_text('')
    return build


def check_no_gpu(folder):
    machine(folder, 'echo "NVIDIA-SMI has failed because it could not talk to the driver"; exit 9')
    status, lines = run('tests/gpu/run', folder)
    expect(
        status == 0
        and lines[-1] == '0 passed, 0 failed, 1 skipped'
        and 'could not talk' in lines[0],
        f'without a GPU: {lines}',
    )
    status, lines = run('perf/gpu/run', folder)
    expect(status == 0 and lines[0].startswith('SKIP perf/gpu: no GPU'), f'without a GPU: {lines}')


def check_counts(folder):
    build = machine(folder)
    gtest(build / 'tests/gpu/gpu_unit_test', ('a', ''), ('b', '<skipped message="no NCCL"/>'))
    gtest(build / 'tests/gpu/gpu_pool_test', ('c', ''), ('d', ''))
    status, lines = run('tests/gpu/run', folder, '--build', build, '--python', 'no-python')
    expect(status == 0 and lines[-1].startswith('3 passed, 0 failed, '), f'all is good: {lines}')
    expect(any('S.b (no NCCL)' in line for line in lines), f'what is skipped is named: {lines}')
    expect(
        any(line.startswith('SKIP units_test.py: no-python') for line in lines),
        f'no torch: {lines}',
    )
    gtest(build / 'tests/gpu/gpu_pool_test', ('c', ''), ('d', '<failure message="no"/>'), status=1)
    status, lines = run(
        'tests/gpu/run', folder, '--build', build, '--python', 'no-python', '--out', folder / 'out'
    )
    kept = (folder / 'out/gpu_tests.txt').read_text(encoding='utf-8').splitlines()
    expect(kept[0].startswith('GPU: A GPU') and kept[-1] == lines[-1], f'what is kept: {kept}')
    script(build / 'tests/gpu/gpu_more_test', 'exit 3')
    script(build / 'tests/gpu/gpu_none_test', 'exit 0')
    status, lines = run('tests/gpu/run', folder, '--build', build, '--python', 'no-python')
    expect(
        status == 1 and lines[-1].startswith('2 passed, 3 failed, '),
        f'a case, a status and a program without cases: {lines}',
    )
    script(build / 'tests/gpu/gpu_late_test', 'sleep 1000')
    status, lines = run(
        'tests/gpu/run', folder, '--build', build, '--python', 'no-python', '--minutes', '0.1'
    )
    expect(
        status == 1 and any('too slow' in line or 'time is over' in line for line in lines),
        f'the end of the time: {lines}',
    )


def check_refused(folder):
    machine(folder)
    (folder / 'empty').mkdir()
    for command in ('tests/gpu/run', 'perf/gpu/run'):
        status, lines = run(command, folder, '--build', folder / 'empty')
        expect(status != 0 and 'no libfsccl.so.0' in lines[-1], f'an empty build: {lines}')
    status, lines = run('tools/pack_gpu', folder, folder / 'empty', folder / 'packed')
    expect(status != 0 and 'no build of FSCCL' in lines[-1], f'an empty build: {lines}')


def check_machine_refused(folder):
    for mode in ('Exclusive_Process', 'Prohibited'):
        script(folder / 'bin/nvidia-smi', f'echo "A GPU, 80000 MiB, 580.1, {mode}, Disabled"')
        for command in ('tests/gpu/run', 'perf/gpu/run'):
            status, lines = run(command, folder)
            expect(
                status == 1 and len(lines) == 1 and f'compute mode {mode}' in lines[0],
                f'for one process alone: {lines}',
            )


def kernels(build, **us):
    """Makes a kernels_gpu that reports these times for each case, and for a unit so large that its
    gather must reach the bandwidth of a copy."""
    rows = [
        f'{{"case": "{case}", "bytes": 100663296, "us": {time}, "ratio_to_copy": {ratio}}}'
        for case, (time, ratio) in us.items()
    ]
    script(build / 'perf/gpu/kernels_gpu', '\n'.join(f"echo '{row}'" for row in rows))


def pool(build, *rows):
    script(
        build / 'perf/gpu/pool_gpu',
        '\n'.join(
            [
                'if [ "$1" = --steps ]; then echo "what all are given"; exit 0; fi',
                *(f"echo '{row}'" for row in rows),
            ]
        ),
    )


def trace(allocator, ns, peak, bound=1000, name='equal_layers_flat', python_ns=0):
    return (
        f'{{"what": "trace", "trace": "{name}", "allocator": "{allocator}", "ns": {ns}, "python_ns": {python_ns}, '
        f'"peak_reserved_bytes": {peak}, "bound_bytes": {bound}, "ratio": {peak / bound}}}'
    )


def slot(size, ns, driver_ns, streams=1):
    return (
        f'{{"what": "planned slot", "bytes": {size}, "streams": {streams}, "ns": {ns}, '
        f'"cuMemAllocAsync_ns": {driver_ns}, '
        f'"ratio": {ns / driver_ns}}}'
    )


def torch(folder, kernel_rows, allocators):
    """Makes a Python with a torch that reports these measurements. `allocators` has rows by name.
    Each process must get the number of steps."""
    lines = [
        'case "$*" in',
        '"-c "*) echo "2.11.0|" ;;',
        '*" kernels")',
        *(f"echo '{row}'" for row in kernel_rows),
        ';;',
    ]
    for name, (setting, rows) in allocators.items():
        lines += [
            f'*" allocator {name} "*)',
            f'[ "$PYTORCH_CUDA_ALLOC_CONF" = {setting} ] || exit 4',
            'for steps; do :; done',
            'grep -q "what all are given" "$steps" || exit 5',
            *(f"echo '{row}'" for row in rows),
            ';;',
        ]
    script(folder / 'made-python', '\n'.join([*lines, 'esac']))
    return folder / 'made-python'


def verdicts(lines):
    return {
        line[41:].strip(): line[:12].strip()
        for line in lines
        if line[:12].strip() in ('PASS', 'short', 'not measured')
    }


def beside(lines):
    return {line[36:].strip(): line[14:34].split() for line in lines if line.startswith('beside ')}


def check_table(folder):
    build = machine(folder)
    kernels(build, cast_64_mib=(40, 0.95), reduce_64_mib_2_sources=(40, 0.5))
    pool(build, slot(1, 90, 1800), '{"missing": "rmm", "why": "nobody made it"}')
    script(
        build / 'perf/gpu/gather/gather_gpu',
        """echo '{"case": "g", "ratio_to_copy": 0.97, "bytes": 1}'
echo '{"kernels": null, "missing": "CUPTI", "why": "it is not installed"}'""",
    )
    status, lines = run(
        'perf/gpu/run', folder, '--build', build, '--python', 'no-python', '--out', folder / 'out'
    )
    kept = (
        (folder / 'out/gpu_perf.jsonl').read_text(encoding='utf-8'),
        (folder / 'out/gpu_perf.txt').read_text(encoding='utf-8'),
    )
    expect('"case": "cast_64_mib"' in kept[0] and lines[-1] in kept[1], f'what is kept: {kept}')
    expect(
        beside(lines)['cast_64_mib: us, and of the copy bandwidth'] == ['40.000', '0.950'],
        f'lines beside the table: {lines}',
    )
    wanted = {
        'cast_64_mib: of the copy bandwidth': 'PASS',
        'reduce_64_mib_2_sources: of the copy bandwidth': 'short',
        'gather by p2p: kernels launched': 'not measured',
        'planned take + give back: of cudaMallocAsync, at worst': 'PASS',
        'planned take + give back: of torch default, at worst': 'not measured',
        'reduce_300_small_8_sources: torch._chunk_cat and its mean take times as '
        'long': 'not measured',
        'llama_3_8b_copies: most reserved, of the bound': 'not measured',
    }
    expect(
        status == 0 and wanted.items() <= verdicts(lines).items(),
        f'the table: {verdicts(lines)} of {lines}',
    )
    for text in (
        'missing: rmm: nobody made it',
        'missing: CUPTI: it is not installed',
        'missing: torch: no-python',
    ):
        expect(any(line.startswith(text) for line in lines), f'{text}? {lines}')


def check_beside_others(folder):
    """Every allocator runs on the same traces, and torch's own ways run beside the kernels."""
    build = machine(folder)
    kernels(
        build,
        cast_llama_3_8b_layer=(100, 0.95),
        reduce_llama_3_8b_layer_2_sources=(100, 0.95),
        reduce_300_small_2_sources=(50, 0.95),
        unpack_300_small=(10, 0.95),
    )
    pool(
        build,
        slot(65536, 90, 1000),
        slot(65536, 180, 1000, streams=2),
        slot(16777216, 80, 1000),
        slot(16777216, 80, 1000, streams=2),
        trace('fsccl', 100, 1005),
        trace('cudaMallocAsync', 900, 1500),
        trace('rmm', 80, 1700),
        trace('fsccl', 100, 1100, name='llama_3_8b_copies'),
    )
    script(
        build / 'perf/gpu/gather/gather_gpu',
        """echo '{"case": "g", "us": 7, "copy_us": 7, "ratio_to_copy": 1}'
echo '{"case": "g, recorded", "kernels": 0}'""",
    )
    rows = [
        f'{{"case": "{case}", "us": {us}}}'
        for case, us in (
            ('cast_llama_3_8b_layer', 120),
            ('copy_in_llama_3_8b_layer', 160),
            ('reduce_llama_3_8b_layer_2_sources', 140),
            ('chunk_cat_llama_3_8b_layer_2', 120),
            ('reduce_300_small_2_sources', 101),
            ('unpack_300_small', 35),
        )
    ]
    pairs = '{{"what": "pair", "allocator": "{}", "bytes": 65536, "ns": {}, "python_ns": 200}}'
    python = torch(
        folder,
        rows,
        {
            'torch default': (
                'expandable_segments:False',
                [
                    trace('torch default', 600, 1300, python_ns=200),
                    pairs.format('torch default', 1000),
                ],
            ),
            'torch expandable': (
                'expandable_segments:True',
                [
                    trace('torch expandable', 400, 1200, bound=900),
                    pairs.format('torch expandable', 500),
                ],
            ),
            'torch async': ('backend:cudaMallocAsync', [trace('torch async', 1000, 1400)]),
        },
    )
    status, lines = run('perf/gpu/run', folder, '--build', build, '--python', python)
    wanted = {
        "cast_llama_3_8b_layer: FSDP2's cast and copy take times as long": 'PASS',
        'reduce_llama_3_8b_layer_2_sources: torch._chunk_cat and its mean take times as '
        'long': 'short',
        'reduce_300_small_2_sources: torch._chunk_cat and its mean take times as long': 'PASS',
        'gather by p2p: kernels launched': 'PASS',
        'planned take + give back: of cudaMallocAsync, at worst': 'PASS',
        'planned take + give back between two streams: of cudaMallocAsync, at worst': 'short',
        'planned take + give back: of torch default, at worst': 'PASS',
        'planned take + give back: of torch expandable, at '
        'worst': 'short',  # 90 ns are 0.3 of torch's 500 ns, less 200 ns of Python
        'equal_layers_flat: a pair, of cudaMallocAsync': 'short',
        'equal_layers_flat: a pair, of torch default': 'short',
        'equal_layers_flat: a pair, of torch '
        'expandable': 'not measured',  # its trace was another one
        'equal_layers_flat: most reserved, of the bound': 'PASS',
        'llama_3_8b_copies: most reserved, of the bound': 'short',
    }
    expect(
        status == 0 and wanted.items() <= verdicts(lines).items(),
        f'the table: {verdicts(lines)} of {lines}',
    )
    found = beside(lines)
    for what, values in (
        (
            'equal_layers_flat, torch default: ns a pair, most reserved of the bound',
            ['400.000', '1.300'],
        ),
        ('cast_llama_3_8b_layer: one torch._foreach_copy_ takes times as long', ['1.200']),
        ('equal_layers_flat, rmm: ns a pair, most reserved of the bound', ['80.000', '1.700']),
        (
            'equal_layers_flat, torch async: ns a pair, most reserved of the bound',
            ['1000.000', '1.400'],
        ),
        ('llama_3_8b_copies, cudaMallocAsync: ns a pair, most reserved of the bound', ['-', '-']),
        ('unpack_300_small: torch.split_with_sizes_copy takes times as long', ['3.500']),
        (
            'reduce_llama_3_8b_layer_2_sources: torch._chunk_cat alone takes times as long',
            ['1.200'],
        ),
    ):
        expect(found.get(what) == values, f'{what}: {found.get(what)} of {found}')


def check_mps(folder):
    """Two ranks share a GPU by MPS if MPS starts. The figures with MPS count, and MPS is stopped
    afterwards."""
    build = machine(folder)
    row = '{"case": "g", "us": %s, "copy_us": 7, "ratio_to_copy": %s}'
    script(
        build / 'perf/gpu/gather/gather_gpu',
        f"""if [ -e "$CUDA_MPS_PIPE_DIRECTORY/started" ]; then
echo '{row % (7, 1)}'; else echo '{row % (14, 0.5)}'; fi""",
    )
    what = 'gather by p2p, 2 ranks: of a copy of as many bytes'
    command = ['perf/gpu/run', folder, '--build', build, '--python', 'no-python']
    script(folder / 'bin/nvidia-cuda-mps-control', 'exit 1')
    status, lines = run(*command)
    expect(
        status == 0 and verdicts(lines).get(what) == 'short', f'an MPS that does not start: {lines}'
    )
    expect(
        any(line.startswith('missing: MPS') for line in lines),
        f'an MPS that does not start is named: {lines}',
    )
    script(
        folder / 'bin/nvidia-cuda-mps-control',
        f"""if [ "$1" = -d ]; then touch $CUDA_MPS_PIPE_DIRECTORY/started; else
read word; echo $word >>{folder / 'ended'}; fi""",
    )
    status, lines = run(*command)
    expect(status == 0 and verdicts(lines).get(what) == 'PASS', f'under MPS: {lines}')
    expect(set((folder / 'ended').read_text(encoding='utf-8').split()) == {'quit'}, 'MPS is ended')
    found = beside(lines)
    turns = found[
        'gather by p2p, in turns on the GPU: us of both ranks, of a copy, of copies that both make '
        'at once'
    ]
    expect(turns[0] == '14.000', f'beside it, in turns: {found}')


def check_after(folder):
    """A later run takes what passed from the report of an earlier one: whole programs, and cases of
    programs that failed."""
    build = machine(folder)
    gtest(build / 'tests/gpu/gpu_pool_test', ('c', ''), ('d', ''))
    lines = ['[       OK ] S.a (1 ms)', '[  FAILED  ] S.b (1 ms)']
    script(
        build / 'tests/gpu/gpu_unit_test',
        '\n'.join([f"echo '{line}'" for line in lines] + ['exit 1']),
    )
    command = [
        'tests/gpu/run',
        folder,
        '--build',
        build,
        '--python',
        'no-python',
        '--part',
        'programs',
    ]
    status, lines = run(*command, '--out', folder / 'out')
    expect(
        status == 1 and lines[-1].startswith('3 passed, 1 failed, '), f'the earlier run: {lines}'
    )
    script(build / 'tests/gpu/gpu_pool_test', 'exit 3')
    script(
        build / 'tests/gpu/gpu_unit_test',
        f"echo $1 >{folder / 'given'}; echo '[       OK ] S.b (1 ms)'",
    )
    status, lines = run(*command, '--after', folder / 'out/gpu_tests.txt')
    expect(status == 0 and lines[-1].startswith('4 passed, 0 failed, '), f'the later run: {lines}')
    expect(
        (folder / 'given').read_text(encoding='utf-8').strip() == '--gtest_filter=-S.a',
        'the case that passed is left out',
    )


def check_proof(folder):
    """tests/gpu/proof ends after its first part if that fails; otherwise it runs all parts and
    keeps what they print."""
    build = machine(folder)
    for program in ('tests/unit/kernels/device_kernels_test', 'tests/gpu/gpu_unit_test'):
        gtest(build / program, ('a', '<failure message="no"/>'), status=1)
    command = [
        'tests/gpu/proof',
        folder,
        '--build',
        build,
        '--python',
        'no-python',
        '--minutes',
        '2',
        '--out',
        folder / 'out',
    ]
    status, lines = run(*command)
    expect(
        status == 1
        and lines[-1].endswith('failed: first')
        and not (folder / 'out/programs').exists(),
        f'it goes on: {lines}',
    )
    for program in ('tests/unit/kernels/device_kernels_test', 'tests/gpu/gpu_unit_test'):
        gtest(build / program, ('a', ''))
    status, lines = run(*command)
    expect(status == 0 and lines[-1].endswith('all parts ended well'), f'all parts: {lines}')
    kept = (folder / 'out/proof.txt').read_text(encoding='utf-8').splitlines()
    expect(kept == lines and (folder / 'out/perf/gpu_perf.txt').exists(), f'what is kept: {kept}')


def main(*checks):
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))


if __name__ == '__main__':
    main(
        check_no_gpu,
        check_counts,
        check_refused,
        check_machine_refused,
        check_table,
        check_beside_others,
        check_mps,
        check_after,
        check_proof,
    )
