"""The frame of the checks of the source tree. A check is a function that takes a root folder and
returns a list of problems.

main() runs it over the tree or, with --self-test, over small trees, each of which is wrong in one
way, because a check that cannot fail is worthless.
"""

import pathlib
import sys
import tempfile

CODE_FOLDERS = (
    'include',
    'src',
    'transports',
    'allocators',
    'examples',
    'tests',
    'perf',
    'tools',
    'bindings',
)


def source_files(root, suffixes, folders=CODE_FOLDERS):
    """Yields the files below the named folders that end in one of the suffixes, sorted, without
    those of build trees and caches."""
    for folder in folders:
        for path in sorted((root / folder).rglob('*')):
            left_out = {'__pycache__', 'build'}.intersection(path.relative_to(root).parts)
            if path.suffix in suffixes and path.is_file() and not left_out:
                yield path


def run_self_test(check, samples):
    """Returns what the check judges wrongly. A sample is (name, {path: text}, text that a problem
    must contain, or None if the tree is right)."""
    failures = []
    for name, files, expected in samples:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text, encoding='utf-8')
            problems = check(root)
        if expected is None and problems:
            failures.append(f'{name}: a right tree was refused: {problems}')
        if expected is not None and not any(expected in problem for problem in problems):
            failures.append(f'{name}: expected a problem with "{expected}", got {problems}')
    return failures


def main(check, samples):
    arguments = sys.argv[1:]
    if arguments == ['--self-test']:
        problems = run_self_test(check, samples)
        subject = f'{len(samples)} samples'
    elif len(arguments) == 1:
        problems = check(pathlib.Path(arguments[0]).resolve())
        subject = arguments[0]
    else:
        sys.exit(f'usage: {sys.argv[0]} ROOT | --self-test')
    for problem in problems:
        print(problem)
    print(f'{subject}: {len(problems)} problem{"" if len(problems) == 1 else "s"}')
    sys.exit(1 if problems else 0)
