#!/usr/bin/env python3
"""Tests the tools that format and check the tree (tools/format, tools/checks), in small trees.

usage: tools_test.py ROOT
"""

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / 'tools'), str(ROOT / 'tools/checks')]


def load(name, root):
    """Returns the module of a program of the tree, which then works on the tree at `root`."""
    loader = importlib.machinery.SourceFileLoader(pathlib.Path(name).stem, str(ROOT / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    module.ROOT = root
    return module


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding='utf-8')


def check_listing(root):
    """README.md has its readers make the environment `env`, whose files nobody formats."""
    write(root, {'a.py': '', 'env/pyvenv.cfg': '', 'env/lib/b.py': '', 'build-x/c.py': ''})
    write(root, {'.gitignore': (ROOT / '.gitignore').read_text(encoding='utf-8')})
    listed = load('tools/format', root).tracked
    assert listed() == ['.gitignore', 'a.py'], listed()
    subprocess.run(['git', 'init', '--quiet', root], check=True)
    assert listed() == ['.gitignore', 'a.py'], listed()


def refusal(*command, **variables):
    """Returns what the command prints when it fails, which is no traceback."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, 'PYTHONDONTWRITEBYTECODE': '1', **variables},
    )
    assert done.returncode and 'Traceback' not in done.stdout, (command, done.stdout)
    return done.stdout


def check_offline(root):
    """The tools come from PyPI. Without a network one line says so."""
    shutil.copytree(ROOT / 'tools', root / 'tools', ignore=shutil.ignore_patterns('__pycache__'))
    text = refusal(
        root / 'tools/format',
        PIP_INDEX_URL='http://127.0.0.1:1/',
        PIP_RETRIES='0',
        PIP_CONFIG_FILE=os.devnull,
    )
    assert text.count('\n') == 1 and text.startswith('format: '), text
    assert 'where PyPI can be reached' in text or 'apt install python3-venv' in text, text


def check_refusals_of_git(root):
    """The tools pass on what git says, such as the command for a clone of another user."""
    shutil.copytree(ROOT / 'tools', root / 'tools', ignore=shutil.ignore_patterns('__pycache__'))
    shutil.copytree(ROOT / 'packaging', root / 'packaging')
    subprocess.run(['git', 'init', '--quiet', root], check=True)
    script = (
        f"import sys; sys.path.insert(0, '{root}/tools'); import runpy, environment; "
        'environment.complete = lambda *words: None; '
        f"runpy.run_path('{root}/tools/format', run_name='__main__')"
    )
    no_settings = {'GIT_CONFIG_GLOBAL': os.devnull, 'GIT_CONFIG_SYSTEM': os.devnull}
    for command in (
        (sys.executable, root / 'packaging/dist.py', root / 'build', root / 'output'),
        (sys.executable, root / 'tools/checks/subjects.py', root),
        (sys.executable, '-c', script),
    ):
        text = refusal(*command, GIT_TEST_ASSUME_DIFFERENT_OWNER='1', **no_settings)
        assert 'git config --global --add safe.directory' in text, text
        text = refusal(*command, PATH='')
        assert 'apt install git' in text, text


# These take the place of what sets a machine up, and say how they are called.
STUBS = """
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tool_folder=$root/build-tools
say() { :; }
configure_main_tree() { :; }
prepare_format() { :; }
build_targets() { echo "build ${*:2}"; }
prepare_jax() { echo "prepare jax $*"; }
prepare_launchers() { echo "prepare launchers $*"; }
prepare_torch() { echo "prepare torch $*"; }
"""
MESON = """#!/usr/bin/env python3
import pathlib, sys
if sys.argv[1] == 'introspect':
    print(pathlib.Path(__file__).with_name(sys.argv[3][2:]).read_text())
else:
    print('test', *sys.argv[sys.argv.index('1') + 1 : sys.argv.index('--wrapper')])
"""


def set_up(root, program):
    """Returns the exit status and the output of a program that uses the functions of setup.sh."""
    text = f". '{ROOT}/tools/setup.sh'\nroot='{root}' tool_folder='{root}/tools'\n{program}\n"
    done = subprocess.run(
        ['bash', '-c', text],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def check_packages(root):
    """The scripts that set a machine up install git, without which the checks fail."""
    _, text = set_up(root, 'have() { [ "$1" != git ]; }\nmissing_packages')
    assert 'git' in text.split(), text


def check_foreign_build(root):
    """A folder that `meson setup build` made is not removed without a word."""
    write(root, {'build/mine': ''})
    configure = (
        f"meson() {{ mkdir -p '{root}/build'; echo configured; }}\nconfigure_tree '{root}/build'"
    )
    status, text = set_up(root, configure)
    assert status == 1 and 'move it away or remove it' in text, text
    assert (root / 'build/mine').is_file()
    (root / 'build/mine').unlink()
    status, text = set_up(root, configure.replace('echo configured', 'false'))
    assert status == 1 and 'meson setup failed' in text, text
    status, text = set_up(root, configure)
    assert status == 0 and (root / 'build/.configured').read_text(), text


def check_highway(root):
    """Without a network the error names the file to fetch, and a file that is there is taken."""
    no_network = 'python3() { echo "$3: refused" >&2; return 1; }\npkg-config() { false; }\n'
    (root / 'tools').mkdir()
    status, text = set_up(root, no_network + 'choose_highway')
    assert status == 1 and 'snapshot.debian.org' in text, text
    assert f'could not be fetched: put it into {root}/tools' in text, text
    write(root, {'a.tar': 'content'})
    digest = hashlib.sha256(b'content').hexdigest()
    assert set_up(root, no_network + f"fetch '{root}/a.tar' {digest} http://x") == (0, '')
    status, text = set_up(root, no_network + f"fetch '{root}/a.tar' {'0' * 64} http://x")
    assert status == 1 and f'put it into {root}' in text, text


def check_named_tests(root):
    """`tools/test NAME` builds and sets up what the chosen tests need, and nothing else."""
    build = root / 'build'
    commands = {
        'words': ['python3', '/x/tests/checks/words.py'],
        'names': ['python3', '/x/tests/torch/run.py', 'names_test.py', 'lib', 'base'],
        'hub': ['python3', '/x/tests/torch/run.py', 'hub_test.py', 'lib', 'huggingface'],
        'older': ['python3', '/x/tests/torch/matrix.py', 'lib', '2.11.0', '--quick'],
        'xla': ['python3', '/x/tests/jax/run.py', 'a_test.py', 'lib', '--'],
        'slurm': ['python3', '/x/tests/launchers/launchers_test.py', 'slurm'],
    }
    tests = [
        {'name': name, 'cmd': words, 'suite': [], 'depends': ['id'] if 'lib' in words else []}
        for name, words in commands.items()
    ]
    write(
        root,
        {
            'tools/setup.sh': STUBS,
            'tools/setup_torch.sh': '',
            'tools/setup_launchers.sh': '',
            'tools/count_tests.py': '',
            'bin/meson': MESON,
            'bin/tests': json.dumps(tests),
            'bin/targets': json.dumps([{'id': 'id', 'filename': [str(build / 'libfsccl.so')]}]),
        },
    )
    (root / 'bin/meson').chmod(0o755)
    for name in ('test', 'select_tests.py'):
        shutil.copy(ROOT / 'tools' / name, root / 'tools' / name)
    for names, wanted in {
        'words': 'test words',
        'names words': 'build libfsccl.so|prepare torch |test names words',
        'hub older': 'build libfsccl.so|prepare torch 2.11.0 huggingface|test hub older',
        'xla': 'build libfsccl.so|prepare jax |test xla',
        'slurm': 'prepare launchers |test slurm',
    }.items():
        done = subprocess.run(
            [root / 'tools/test', *names.split()],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, 'PATH': f'{root / "bin"}:{os.environ["PATH"]}'},
        )
        assert done.stdout.splitlines() == wanted.split('|'), (names, done.stdout)


CHECKS = (
    check_listing,
    check_offline,
    check_refusals_of_git,
    check_packages,
    check_foreign_build,
    check_highway,
    check_named_tests,
)


def main():
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))


if __name__ == '__main__':
    main()
