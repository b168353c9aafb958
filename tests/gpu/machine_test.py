#!/usr/bin/env python3
"""machine_test.py BUILD KERNELS LIBRARY..: runs tests/gpu/run as on a machine with one GPU, which
stand-ins without hooks for tests play, on the files that tools/pack_gpu takes to such a machine. No
case may fail, and none may be skipped: cases that cannot run on a GPU are left out by name, and all
others run. (There are no tools, and no UCX with CUDA.) A test that asks the stand-in for more GPUs
gets none, because they are hidden.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ('units_test.py', 'fsdp2_test.py', 'torch_test.py', 'compute-sanitizer')


def main():
    build, kernels, *libraries = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        smi = pathlib.Path(folder, 'nvidia-smi')
        smi.write_text(
            '#!/bin/sh\necho "a stand-in, 1024 MiB, 580.1, Default, Disabled"\n', encoding='utf-8'
        )
        smi.chmod(0o755)
        env = dict(
            os.environ,
            PATH=f'{folder}:{os.environ["PATH"]}',
            FSCCL_STAND_IN_GPUS='1',
            CUDA_VISIBLE_DEVICES='0',
            FSCCL_STAND_IN_KERNELS=kernels,
            LD_LIBRARY_PATH=':'.join(
                str(pathlib.Path(library).resolve().parent) for library in libraries
            ),
        )
        packed = pathlib.Path(folder, 'packed')
        subprocess.run([ROOT / 'tools/pack_gpu', build, packed], check=True)
        # The limits are generous, because no GPU's time is lost here, and there are more ranks than
        # cores, and other tests at the same time.
        command = [
            ROOT / 'tests/gpu/run',
            '--build',
            packed,
            '--python',
            'no-python',
            '--seconds',
            '300',
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, check=False)
    print(done.stdout)
    skipped = [line for line in done.stdout.splitlines() if line.startswith('skipped: ')]
    untrue = [
        line
        for line in skipped
        if not line.removeprefix('skipped: ').startswith(TOOLS)
        and not any(
            why in line
            for why in ('nvcc', 'without kernels', 'TRANSPORT is ucx', 'collectives by ucx')
        )
    ]
    if done.returncode or untrue or ' passed, ' not in done.stdout:
        sys.exit('\n'.join(['not all of it ran:', *untrue]))


if __name__ == '__main__':
    main()
