"""Starts the ranks of a job on the hosts that hosts.py has made."""

import os
import subprocess
import tempfile

SECRET = tempfile.NamedTemporaryFile(
    'w', suffix='.secret'
)  # the secret of all jobs of the test; the file is gone when the test ends
SECRET.write(os.urandom(16).hex())
SECRET.flush()


def hosts():
    """Returns for each host how to run a command there, and which variables it needs."""
    given = os.environ['TEST_HOSTS']
    if given.isdigit():
        return [([], {'FSCCL_HOST_ID': f'host {host}'}) for host in range(int(given))]
    return [(['nsenter', f'--net={name}'], {}) for name in given.split(',')]


def real():
    """Returns whether hosts have networks of their own."""
    return not os.environ['TEST_HOSTS'].isdigit()


def start(command, per_host, variables=None, of_rank=lambda rank: None, **options):
    """Starts the ranks, and returns their processes by rank. `of_rank(rank)` gives variables of one
    rank alone."""
    count = per_host * len(hosts())
    processes = []
    for host, (enter, named) in enumerate(hosts()):
        for local in range(per_host):
            rank = host * per_host + local
            environment = dict(
                os.environ,
                RANK=str(rank),
                WORLD_SIZE=str(count),
                FSCCL_JOB_SECRET_FILE=SECRET.name,
                **named,
            )
            environment.update(
                LOCAL_RANK=str(local),
                LOCAL_WORLD_SIZE=str(per_host),
                MASTER_PORT='29517',
                MASTER_ADDR='10.119.0.1' if real() else '127.0.0.1',
            )
            environment.update(variables or {})
            environment.update(of_rank(rank) or {})
            processes.append(
                subprocess.Popen(
                    [*enter, *map(str, command)],
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    **options,
                )
            )
    return processes


def ends(processes, timeout=100):
    """Returns (status, output, errors) of each rank."""
    results = []
    try:
        for process in processes:
            try:
                output, errors = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
                errors += f'(still running after {timeout} s)'
            results.append((process.returncode, output, errors))
    finally:
        for process in processes:
            process.kill()
    return results
