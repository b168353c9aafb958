"""Helpers of the tests of programs, which run a program and check what was expected."""

import subprocess
import sys


def run(*command, status=0, timeout=200, env=None):
    """Runs a program and returns its output, or, if it must fail, its errors and then its output.
    `status` is the expected exit status. None stands for any but 0."""
    command = [str(word) for word in command]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=env, check=False
    )
    if done.returncode != status if status is not None else done.returncode == 0:
        sys.exit(
            f'{" ".join(command)}: status {done.returncode}, not '
            f'{"0 alone" if status is None else status}\n'
            f'{done.stdout}{done.stderr}'
        )
    return done.stdout if status == 0 else done.stderr + done.stdout


def expect(holds, what):
    if not holds:
        sys.exit(f'failed: {what}')
