"""Tests what all programs have in common: --version, and ranks that have the program's name.
usage: programs_test.py INFO PERF TRACE"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

from program import expect, run

info, perf, trace = sys.argv[1:]
LONG = ('collectives', '--ranks', '2', '-b', '1M', '-e', '1M', '-n', '1000000', '-c', '0')
SHORT = ('collectives', '--ranks', '2', '-b', '64', '-e', '64', '-n', '1')


def check_versions():
    for program in (info, perf, trace):
        printed = run(program, '--version')
        expect(re.match(r'fsccl[a-z-]* \d+\.\d+\.\d+', printed), f'{program} --version: {printed}')


def children_of(process):
    return (
        pathlib.Path(f'/proc/{process.pid}/task/{process.pid}/children')
        .read_text(encoding='ascii')
        .split()
    )


def check_names_of_ranks():
    """Lists of processes show ranks under the program's name, whether it was started by path, by
    link or by search."""
    folder, name = os.path.split(os.path.abspath(perf))
    for command in ([perf], ['env', f'PATH={folder}:{os.environ["PATH"]}', name]):
        process = subprocess.Popen(
            [*command, *LONG], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            names = []
            while process.poll() is None and names != [
                name,
                name,
            ]:  # a new rank has its parent's name for a moment
                names = [
                    pathlib.Path(f'/proc/{child}/cmdline').read_bytes().split(b'\0')[0]
                    and pathlib.Path(f'/proc/{child}/comm').read_text(encoding='ascii').strip()
                    for child in children_of(process)
                    if b'--local-place' in pathlib.Path(f'/proc/{child}/cmdline').read_bytes()
                ]
                expect('exe' not in names, f'ranks of {command} are called {names}')
            expect(process.poll() is None, f'{command} ended')
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def check_without_proc():
    for rights in (['unshare', '--mount'], ['unshare', '--user', '--map-root-user', '--mount']):
        hidden = [*rights, 'sh', '-c', 'mount -t tmpfs none /proc && exec "$0" "$@"']
        if (
            shutil.which('unshare')
            and subprocess.run([*hidden, 'true'], capture_output=True, check=False).returncode == 0
        ):
            # Without /proc the system's loader does not find the library beside the program.
            library = pathlib.Path(perf).resolve().parent.parent
            variables = {**os.environ, 'LD_LIBRARY_PATH': str(library), 'FSCCL_TIMEOUT_MS': '30000'}
            run(*hidden, os.path.abspath(perf), *SHORT, env=variables)
            return
    print('/proc cannot be hidden here: fsccl-perf was not tried without it')


check_versions()
check_names_of_ranks()
check_without_proc()
