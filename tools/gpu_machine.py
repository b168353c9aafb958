"""The parts that tests/gpu/run and perf/gpu/run share: the build that they use, and what the
machine has: its GPU, NCCL, and a Python with torch.

A build is a folder of Meson, or a folder that tools/pack_gpu has made of one for a machine that
cannot build. Both have programs at the same places. Nothing is taken from elsewhere, and nothing is
installed.
"""

import contextlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
CUPTI = '/usr/local/cuda/extras/CUPTI/lib64'
IMPORT_S = 200  # torch may take so long when it is loaded for the first time
NEEDED_TO_BUILD = ('meson', 'ninja', 'c++', 'pkg-config')


def gpu():
    """Returns (a text with name, memory, driver and modes of the first GPU, '') or (None, why there
    is no GPU). Ends the program if the mode of the GPU does not let several processes use it, as
    ranks on one GPU do."""
    if not shutil.which('nvidia-smi'):
        return None, 'no GPU: nvidia-smi is not installed'
    query = [
        'nvidia-smi',
        '--query-gpu=name,memory.total,driver_version,compute_mode,mig.mode.current',
        '--format=csv,noheader',
    ]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return None, 'no GPU: nvidia-smi does not answer'
    lines = answer.stdout.strip().splitlines()
    if answer.returncode != 0 or not lines:
        return (
            None,
            f'no GPU: nvidia-smi: '
            f'{" ".join((answer.stdout + answer.stderr).split()) or answer.returncode}',
        )
    name, memory, driver, mode, mig = (lines[0].split(', ') + ['?'] * 5)[:5]
    if mode.lower().startswith(('exclusive', 'prohibited')):
        sys.exit(
            f'{name} is in compute mode {mode}: ranks are several processes that share it, as '
            f'`nvidia-smi -c DEFAULT` allows'
        )
    return (
        f'{name}, {memory}, driver {driver}, compute mode {mode}, MIG {mig}, '
        f'{" ".join(platform.libc_ver())}',
        '',
    )


def build(given, targets):
    """Returns the folder with the programs. Ends the program, saying what to do, if the folder can
    be neither found nor made."""
    if given:
        folder = pathlib.Path(given).resolve()
        if not (folder / 'libfsccl.so.0').exists():
            sys.exit(
                f'{folder} has no libfsccl.so.0: build it with ninja, or make it with '
                f'tools/pack_gpu where there is a build'
            )
        return folder
    folder = ROOT / 'build'
    missing = [name for name in NEEDED_TO_BUILD if not shutil.which(name)]
    if missing:
        sys.exit(
            f'{", ".join(missing)} not installed here: make a folder with tools/pack_gpu where '
            f'FSCCL is built, carry it here '
            'and name it with --build'
        )
    try:
        if not (folder / 'build.ninja').exists():
            subprocess.run(
                ['meson', 'setup', folder, ROOT, '--buildtype=release', '--libdir=lib'], check=True
            )
        known = subprocess.run(
            ['ninja', '-C', folder, '-t', 'targets', 'all'],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        wanted = [target for target in targets if f'\n{target}:' in f'\n{known}']
        subprocess.run(['ninja', '-C', folder, *wanted], check=True)
    except subprocess.CalledProcessError as error:
        sys.exit(
            f'it does not build here ({" ".join(map(str, error.cmd[:3]))} ended with '
            f'{error.returncode}; its own words are '
            'above): make a folder with tools/pack_gpu where FSCCL is built, carry it here and '
            'name it with --build'
        )
    return folder


def kept(folder, name):
    """Opens a file in the folder, which is made if needed. Without a folder it returns a context
    whose value is None."""
    if not folder:
        return contextlib.nullcontext()
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    return open(pathlib.Path(folder, name), 'w', encoding='utf-8')


def python_with_torch(given):
    """Returns (a Python whose torch sees a GPU, the version of its torch, '') or (None, None, why
    there is none)."""
    question = (
        'import torch; print(torch.__version__ if torch.cuda.is_available() else "", "no GPU is '
        'seen by torch" '
        'if not torch.cuda.is_available() else "", sep="|")'
    )
    candidates = [given] if given else [ROOT / 'build-torch/base/bin/python', 'python3']
    why = 'no Python with torch'
    for candidate in candidates:
        try:
            answer = subprocess.run(
                [str(candidate), '-c', question],
                capture_output=True,
                text=True,
                timeout=IMPORT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f'{candidate}: {error}'
            continue
        version, _, problem = answer.stdout.strip().partition('|')
        if version:
            return str(candidate), version, ''
        why = f'{candidate}: {problem or "it has no torch"}'
    return None, None, why


def environment(folder, python=None):
    """Returns the variables with which the programs of a build run: they name its library, the
    libraries packed with it, torch's NCCL, and CUPTI."""
    found = dict(
        os.environ,
        FSCCL_TORCH_LIBRARY=str(folder / 'libfsccl.so.0'),
        OMP_NUM_THREADS='1',
        # Ranks of one process wait on streams of one GPU, so each needs its own queue, as do their
        # copies, for which newer CUDA has another number.
        CUDA_DEVICE_MAX_CONNECTIONS='32',
        CUDA_DEVICE_MAX_COPY_CONNECTIONS='32',
    )
    folders = [str(folder / 'lib')] if (folder / 'lib').is_dir() else []
    if python:
        question = 'import importlib.util as u; print(*u.find_spec("nvidia").submodule_search_locations, sep="\\n")'
        answer = subprocess.run(
            [python, '-c', question], capture_output=True, text=True, check=False
        )
        for place in (
            answer.stdout.split('\n') if answer.returncode == 0 else []
        ):  # each wheel of CUDA 12 has its own folder
            wheels = [pathlib.Path(place, part, 'lib') for part in ('nccl', 'cu13', 'cuda_cupti')]
            folders += [str(libraries) for libraries in wheels if libraries.is_dir()]
    if found.get('LD_LIBRARY_PATH'):
        folders.append(found['LD_LIBRARY_PATH'])
    if pathlib.Path(CUPTI).is_dir():
        folders.append(CUPTI)
    if folders:
        found['LD_LIBRARY_PATH'] = ':'.join(folders)
    return found
