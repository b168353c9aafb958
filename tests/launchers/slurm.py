"""A whole Slurm on this machine, with a key, socket, ports and configuration of its own, in a
folder. It ends with the test, however the test ends."""

import ctypes
import getpass
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import launchers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'perf'))
from free_port import free_port

START_SECONDS = 60
STOP_SECONDS = 20
PROGRAMS = {
    'munged': 'munge',
    'slurmctld': 'slurmctld',
    'slurmd': 'slurmd',
    'srun': 'slurm-client',
    'sinfo': 'slurm-client',
}
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
CONFIGURATION = """ClusterName=fsccl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def die_with_the_test():
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGTERM)


def program(name):
    """Returns the path of a program. Daemons are in folders that are not in every user's PATH."""
    return shutil.which(name, path=os.environ['PATH'] + ':/usr/sbin:/sbin')


def missing():
    """Returns the names of the parts of Slurm that are not installed, or an empty text."""
    names = sorted(
        f'{name} (Debian: {package})' for name, package in PROGRAMS.items() if not program(name)
    )
    return f'of Slurm on one machine these are missing: {", ".join(names)}' if names else ''


class Slurm:
    """`with Slurm(nodes) as slurm: slurm.run('srun', ...)`. The nodes n1, n2 ... are this machine,
    and claim more cores than it has."""

    def __init__(self, nodes):
        self.nodes = [f'n{number}' for number in range(1, nodes + 1)]
        self.daemons = []

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='fsccl-slurm-'))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        for name in ('munge', 'state', 'log'):
            (self.folder / name).mkdir(mode=0o700)
        key = self.folder / 'munge/key'
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        ports = set()
        while len(ports) <= len(self.nodes):
            ports.add(free_port())
        controller_port = ports.pop()
        host = socket.gethostname().split('.')[0]
        nodes = '\n'.join(
            f'NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 '
            f'State=UNKNOWN'
            for node, port in zip(self.nodes, ports)
        )
        self.configuration = self.folder / 'slurm.conf'
        text = CONFIGURATION.format(
            host=host,
            controller_port=controller_port,
            user=getpass.getuser(),
            folder=self.folder,
            nodes=nodes,
        )
        self.configuration.write_text(text, encoding='utf-8')
        munge = self.folder / 'munge'
        # With --force root may run it, and its folder need not be open to everybody.
        self._daemon(
            'munged',
            '--force',
            '--foreground',
            '--num-threads=1',
            f'--key-file={key}',
            f'--socket={munge}/socket',
            f'--pid-file={munge}/pid',
            f'--log-file={munge}/messages',
            f'--seed-file={munge}/seed',
        )
        self._wait_for('munged', (munge / 'socket').exists)
        self._daemon('slurmctld', '-D', '-f', self.configuration)
        for node in self.nodes:
            self._daemon('slurmd', '-D', '-N', node, '-f', self.configuration)
        self._wait_for('Slurm', self._is_idle)

    def _daemon(self, name, *arguments):
        log = self.folder / 'log' / f'{name}.{len(self.daemons)}'
        with log.open('w') as output:
            self.daemons.append(
                subprocess.Popen(
                    [program(name), *map(str, arguments)],
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    env=self.environment(),
                    preexec_fn=die_with_the_test,
                )
            )

    def _is_idle(self):
        states = subprocess.run(
            ['sinfo', '--noheader', '--Node', '--format=%T'],
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
            env=self.environment(),
        ).stdout.split()
        return states == ['idle'] * len(self.nodes)

    def _wait_for(self, what, ready):
        until = time.monotonic() + START_SECONDS
        while not ready():
            ended = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
            if ended or time.monotonic() > until:
                logs = '\n'.join(
                    path.read_text(errors='replace')[-2000:]
                    for path in sorted((self.folder / 'log').iterdir())
                )
                sys.exit(f'{what} did not start; {ended or "nobody"} ended before:\n{logs}')
            time.sleep(0.05)

    def environment(self, **more):
        return launchers.environment(SLURM_CONF=self.configuration, **more)

    def run(self, *command, status=0, **more):
        return launchers.finish(launchers.start(*command, env=self.environment(**more)), status)

    def _processes(self):
        """Returns processes of this cluster, by their arguments and their environment."""
        mark = str(self.folder).encode()
        for entry in pathlib.Path('/proc').iterdir():
            try:
                if (
                    entry.name.isdigit()
                    and int(entry.name) != os.getpid()
                    and (
                        mark in (entry / 'cmdline').read_bytes()
                        or mark in (entry / 'environ').read_bytes()
                    )
                ):
                    yield int(entry.name)
            except OSError:
                pass  # ended meanwhile, or somebody else's

    def __exit__(self, *_):
        """Stops the daemons in an order in which none needs another one that is gone."""
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        until = (
            time.monotonic() + STOP_SECONDS
        )  # a step's own process ends a moment after its tasks
        while (left := list(self._processes())) and time.monotonic() < until:
            time.sleep(0.05)
        for process in left:
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        if left:
            sys.exit(f'processes of Slurm were left: {left}')
