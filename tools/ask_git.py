"""Asks git about a tree, for the tools that work on a clone."""

import subprocess
import sys


def ask_git(root, *words):
    """Returns the bytes that git prints. If it fails, the program ends with git's own text."""
    try:
        done = subprocess.run(['git', '-C', root, *words], capture_output=True, check=False)
    except FileNotFoundError:
        sys.exit(f'git is missing, and {root} is a clone: install it (apt install git)')
    if done.returncode:
        said = done.stderr.decode(errors='replace').strip()
        sys.exit(
            f'git {words[0]} in {root} ended with {done.returncode}. It says what to do:\n{said}'
        )
    return done.stdout
