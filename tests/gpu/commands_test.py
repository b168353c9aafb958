#!/usr/bin/env python3
"""tests/gpu/run, perf/gpu/run and tools/pack_gpu on a made machine: a folder with an nvidia-smi and a build of small scripts. What
they count, skip and refuse; nothing here is a GPU.
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
    env = dict(os.environ, PATH=f'{folder / "bin"}:{os.environ["PATH"]}')
    done = subprocess.run([ROOT / command, *map(str, arguments)], capture_output=True, text=True, env=env, timeout=100, check=False)
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()


def machine(folder, smi='echo "A GPU, 80000 MiB, 580.1"'):
    script(folder / 'bin/nvidia-smi', smi)
    build = folder / 'build'
    build.mkdir()
    (build / 'libfsccl.so.0').write_text('')
    return build


def check_no_gpu(folder):
    machine(folder, 'echo "NVIDIA-SMI has failed because it could not talk to the driver"; exit 9')
    status, lines = run('tests/gpu/run', folder)
    expect(status == 0 and lines[-1] == '0 passed, 0 failed, 1 skipped' and 'could not talk' in lines[0], f'without a GPU: {lines}')
    status, lines = run('perf/gpu/run', folder)
    expect(status == 0 and lines[0].startswith('SKIP perf/gpu: no GPU'), f'without a GPU: {lines}')


def check_counts(folder):
    build = machine(folder)
    gtest(build / 'tests/gpu/gpu_unit_test', ('a', ''), ('b', '<skipped message="no NCCL"/>'))
    gtest(build / 'tests/gpu/gpu_pool_test', ('c', ''), ('d', ''))
    status, lines = run('tests/gpu/run', folder, '--build', build, '--python', 'no-python')
    expect(status == 0 and lines[-1].startswith('3 passed, 0 failed, '), f'all is good: {lines}')
    expect(any('S.b (no NCCL)' in line for line in lines), f'what is skipped is named: {lines}')
    expect(any(line.startswith('SKIP units_test.py: no-python') for line in lines), f'no torch: {lines}')
    gtest(build / 'tests/gpu/gpu_pool_test', ('c', ''), ('d', '<failure message="no"/>'), status=1)
    status, lines = run('tests/gpu/run', folder, '--build', build, '--python', 'no-python', '--out', folder / 'out')
    kept = (folder / 'out/gpu_tests.txt').read_text(encoding='utf-8').splitlines()
    expect(kept[0].startswith('GPU: A GPU') and kept[-1] == lines[-1], f'what is kept: {kept}')
    script(build / 'tests/gpu/gpu_more_test', 'exit 3')
    script(build / 'tests/gpu/gpu_none_test', 'exit 0')
    status, lines = run('tests/gpu/run', folder, '--build', build, '--python', 'no-python')
    expect(status == 1 and lines[-1].startswith('2 passed, 3 failed, '), f'a case, a status and a program without cases: {lines}')
    script(build / 'tests/gpu/gpu_late_test', 'sleep 1000')
    status, lines = run('tests/gpu/run', folder, '--build', build, '--python', 'no-python', '--minutes', '0.1')
    expect(status == 1 and any('too slow' in line or 'time is over' in line for line in lines), f'the end of the time: {lines}')


def check_refused(folder):
    machine(folder)
    (folder / 'empty').mkdir()
    for command in ('tests/gpu/run', 'perf/gpu/run'):
        status, lines = run(command, folder, '--build', folder / 'empty')
        expect(status != 0 and 'no libfsccl.so.0' in lines[-1], f'an empty build: {lines}')
    status, lines = run('tools/pack_gpu', folder, folder / 'empty', folder / 'packed')
    expect(status != 0 and 'no build of FSCCL' in lines[-1], f'an empty build: {lines}')


def check_table(folder):
    build = machine(folder)
    rows = ['{"case": "cast_64_mib", "bytes": 100663296, "us": 40, "ratio_to_copy": 0.95}',
            '{"case": "reduce_64_mib_2_sources", "bytes": 100663296, "us": 40, "ratio_to_copy": 0.5}']
    script(build / 'perf/gpu/kernels_gpu', '\n'.join(f"echo '{row}'" for row in rows))
    script(build / 'perf/gpu/pool_gpu', """echo '{"what": "planned slot", "bytes": 1, "ns": 90, "ratio": 0.05}'""")
    script(build / 'perf/gpu/gather/gather_gpu', """echo '{"case": "g", "ratio_to_copy": 0.97, "kernels": 0, "bytes": 1}'""")
    status, lines = run('perf/gpu/run', folder, '--build', build, '--python', 'no-python', '--out', folder / 'out')
    kept = (folder / 'out/gpu_perf.jsonl').read_text(encoding='utf-8'), (folder / 'out/gpu_perf.txt').read_text(encoding='utf-8')
    expect('"case": "cast_64_mib"' in kept[0] and lines[-1] in kept[1], f'what is kept: {kept}')
    expect(any(line.startswith('beside') and 'cast_64_mib: us' in line for line in lines), f'lines beside the table: {lines}')
    found = {line[41:].strip(): line[:12].strip() for line in lines if line[:12].strip() in ('PASS', 'short', 'not measured')}
    wanted = {'cast_64_mib: of the copy bandwidth': 'PASS', 'reduce_64_mib_2_sources: of the copy bandwidth': 'short',
              'gather by p2p: kernels launched': 'PASS', 'planned take + give back: of cudaMallocAsync': 'PASS',
              "planned take + give back: of torch's caching allocator": 'not measured'}
    expect(status == 0 and wanted.items() <= found.items(), f'the table: {found} of {lines}')


def main():
    for check in (check_no_gpu, check_counts, check_refused, check_table):
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))


if __name__ == '__main__':
    main()
