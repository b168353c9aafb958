#!/usr/bin/env python3
"""Tests the tools that format and check the tree (tools/format, tools/checks), in small trees.

usage: tools_test.py ROOT
"""

import importlib.machinery
import importlib.util
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


def main():
    for check in (check_listing, check_offline):
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))


if __name__ == '__main__':
    main()
