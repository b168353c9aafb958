"""Knows the programs of a build that need a GPU: which they are, if they can be loaded here, and
how one is run so that it ends."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The programs that tests/gpu/run runs, in order. The tests that say most come first, then the tests
# of Python, then the rest, in which ranks that are processes come before ranks that are threads.
FIRST_TESTS = [
    'tests/unit/kernels/device_kernels_test',
    'tests/gpu/gpu_unit_test',
    'tests/gpu/gpu_collectives_test',
]
OTHER_TESTS = [
    'tests/gpu/gpu_*_test',
    'tests/unit/pool/pool_device_processes_test',
    'tests/multi/device_units_processes_test',
    'tests/conformance/conformance_device_units',
    'tests/conformance/conformance_device_hsdp',
    'tests/conformance/conformance_device',
    'tests/conformance/conformance_device_pool',
    'tests/unit/pool/pool_device_test',
    'tests/unit/comm/stream_watch_test',
]
EXAMPLE, INFO = 'examples/gpu', 'tools/fsccl-info'
MEASURED = ['perf/gpu/*_gpu', 'perf/gpu/gather/gather_gpu']
FOR_PYTHON = ['perf/fsccl-perf']  # some cases of torch_test.py run it
ALL = [*FIRST_TESTS, *OTHER_TESTS, EXAMPLE, INFO, *MEASURED, *FOR_PYTHON]


def found(folder, patterns):
    """Returns the programs of a build, each once, in the order of the patterns."""
    return list(
        dict.fromkeys(
            path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()
        )
    )


def not_loaded(program, env):
    """Returns the lines in which the loader of this machine says what it does not find for a
    program. There are none if the program can be loaded."""
    answer = subprocess.run(
        [program],
        env=dict(env, LD_TRACE_LOADED_OBJECTS='1'),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors='replace',
        timeout=60,
        check=False,
    )
    return [' '.join(line.split()) for line in answer.stdout.splitlines() if 'not found' in line]


def run(command, env, limit_s, silent_s=None, apart=False):
    """Runs a program. Returns its exit status, its output, and with `apart` its errors, which are
    otherwise part of the output. The program is ended, with all that it has started, after
    `limit_s` or when it has printed nothing for `silent_s`; the status is then None."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors if apart else subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            status = _ended(process, output, limit_s, limit_s if silent_s is None else silent_s)
        finally:
            _end(process)
        return status, _text(output), _text(errors)


def _end(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)  # a process in the driver of a GPU may not end now
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass


def _ended(process, output, limit_s, silent_s):
    begin = heard = time.monotonic()
    printed = 0
    while True:
        try:
            return process.wait(0.1)
        except subprocess.TimeoutExpired:
            now, size = time.monotonic(), os.fstat(output.fileno()).st_size
            if size != printed:
                printed, heard = size, now
            if now - begin > limit_s or now - heard > silent_s:
                return None


def _text(file):
    file.seek(0)
    return file.read().decode(errors='replace')


def prepare(folder, patterns, env):
    """Returns lines about the machine and the programs. Makes files executable that have lost this
    right. Ends the program, saying what to do, if one of them cannot be loaded."""
    lines = []
    for program in found(folder, patterns):
        if not os.access(program, os.X_OK):
            try:
                program.chmod(program.stat().st_mode | 0o111)
            except OSError as error:
                sys.exit(
                    f'{program} may not be executed, and cannot be made so ({error}): chmod +x'
                )
            lines.append(f'{program.relative_to(folder)}: made executable')
        if missing := not_loaded(program, env):
            sys.exit(
                '\n'.join(
                    [
                        f'{program} cannot be loaded here:',
                        *(f'    {line}' for line in missing),
                        'make the folder again with tools/pack_gpu, on a machine whose C and C++ '
                        'libraries are no newer '
                        'than these',
                    ]
                )
            )
    for program in found(folder, [INFO]):
        status, output, _ = run([program, 'devices'], env, 60)
        lines += [f'fsccl-info devices: {"it does not end" if status is None else status}'] * (
            status != 0
        ) + output.splitlines()
    return lines
