#!/usr/bin/env python3
"""Counts the library's lines of code, which are neither blank nor comment, by folder, and beside
them those of another commit, formatted as this tree is. usage: tools/count_lines.py [COMMIT]
"""

import io
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize

from ask_git import ask_git

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ('src', 'transports', 'allocators', 'bindings')
C_SUFFIXES = {'.h', '.c', '.cpp', '.cu', '.cuh', '.def', '.inc'}
COMMENT = re.compile(
    r'R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|(//[^\n]*|/\*.*?\*/)', re.S
)


def c_lines(text):
    def blank(match):
        return re.sub(r'[^\n]', ' ', match[0]) if match[1] else match[0]

    return sum(bool(line.strip()) for line in COMMENT.sub(blank, text).split('\n'))


def python_lines(text):
    """Returns the number of lines with a token that is neither a comment nor a docstring."""
    lines, first = set(), True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            continue
        if token.type == tokenize.NEWLINE:
            first = True
        elif not (first and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
            first = False
    return len(lines)


def count(root):
    """Returns {folder: lines of code}. Folders of src and bindings are counted one by one, others
    as a whole."""
    by_folder = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob('*')):
            relative = path.relative_to(root)
            if not path.is_file() or 'build' in relative.parts or path.name == '_header.py':
                continue  # nobody reads generated files
            if path.suffix in C_SUFFIXES:
                lines = c_lines(path.read_text(encoding='utf-8'))
            elif path.suffix == '.py':
                lines = python_lines(path.read_text(encoding='utf-8'))
            else:
                continue
            name = '/'.join(relative.parts[:2]) if folder in ('src', 'bindings') else folder
            by_folder[name] = by_folder.get(name, 0) + lines
    return by_folder


def formatted(commit, folder):
    """Writes the folders of a commit to `folder`, formatted as this tree is, and returns it."""
    archive = ask_git(ROOT, 'archive', commit, *FOLDERS)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter='data')
    tools = ROOT / 'build-tools/format/bin'
    sources = [p for p in folder.rglob('*') if p.suffix in C_SUFFIXES - {'.def', '.inc'}]
    style = f'--style=file:{ROOT / ".clang-format"}'
    subprocess.run([tools / 'clang-format', style, '-i', *sources], check=True)
    python = [*folder.rglob('*.py')]
    subprocess.run(
        [tools / 'ruff', 'format', '--quiet', '--config', ROOT / 'pyproject.toml', *python],
        check=True,
    )
    return folder


def main():
    now = count(ROOT)
    if len(sys.argv) > 2:
        sys.exit('usage: tools/count_lines.py [COMMIT]')
    before = {}
    if len(sys.argv) == 2:
        with tempfile.TemporaryDirectory() as folder:
            before = count(formatted(sys.argv[1], pathlib.Path(folder)))
    for name in sorted({*now, *before}):
        print(f'{name:24} {before.get(name, 0):8} {now.get(name, 0):8}')
    print(f'{"all":24} {sum(before.values()):8} {sum(now.values()):8}')


if __name__ == '__main__':
    main()
