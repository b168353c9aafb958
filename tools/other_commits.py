"""The sources of other commits beside this tree, for the scripts that compare the two."""

import os
import pathlib
import subprocess
import sys

from ask_git import ask_git

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run(*command, **options):
    """Runs a command and returns what it printed. If it fails, the script ends with its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f'{" ".join(map(str, command))}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}')
    return done.stdout


def source_of(commit, folder):
    """Returns the folders of the sources and of the build of a commit, below `folder`. An empty
    commit stands for this tree."""
    if not commit:
        return ROOT, folder / 'here'
    name = ask_git(ROOT, 'rev-parse', '--short', commit).decode().strip()
    source = folder / f'source-{name}'
    if not source.exists():
        source.mkdir(parents=True)
        archive = ask_git(ROOT, 'archive', commit)
        subprocess.run(['tar', '-x', '-C', source], input=archive, check=True)
    return source, folder / name


def environment_of(folder):
    """Returns the environment of the programs of a build: without settings of the library, and with
    a cache of its own, because what one tree measures of this machine is not for the other."""
    own = {name: value for name, value in os.environ.items() if not name.startswith('FSCCL_')}
    return {**own, 'XDG_CACHE_HOME': str(folder / 'cache')}


def build_program(commit, folder, program):
    """Builds a program of a commit as a release, below `folder`. Returns the folder of the build."""
    source, build = source_of(commit, folder)
    if not (build / 'build.ninja').exists():
        build.parent.mkdir(exist_ok=True)
        run('meson', 'setup', build, source, '--libdir=lib')
    run('ninja', '-C', build, program)
    return build
