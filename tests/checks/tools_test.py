#!/usr/bin/env python3
"""Tests the tools that format and check the tree (tools/format, tools/checks), in small trees.

usage: tools_test.py ROOT
"""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])


def load(name, root):
    """Returns the module of a program of the tree, which then works on the tree at `root`."""
    loader = importlib.machinery.SourceFileLoader(pathlib.Path(name).stem, str(ROOT / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.dont_write_bytecode = True
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


def main():
    for check in (check_listing,):
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))


if __name__ == '__main__':
    main()
