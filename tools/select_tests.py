#!/usr/bin/env python3
"""Prints the tests of a configured tree that belong to a suite, or whose names contain one of the
words, and what must be built and set up for them.

usage: select_tests.py BUILD --suite SUITE | NAME ...

The lines are `target FILE`, relative to BUILD, `prepare WHAT` for the function prepare_WHAT of the
scripts of tools/, with its arguments, and `test NAME`. The exit status is 1 if a word is
in no name, after a list of names that are close, or if two tests have the same name, since Meson
would run both.
"""

import collections
import difflib
import json
import pathlib
import re
import subprocess
import sys


def introspect(build, what):
    answer = subprocess.run(
        ['meson', 'introspect', build, f'--{what}'], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(answer.stdout)


def chosen(tests, words):
    """Returns the tests that the words name. A word that is the whole name of a test means that
    test alone. Ends the program if no name contains a word."""
    found = {}
    for word in words:
        matches = [test for test in tests if test['name'] == word] or [
            test for test in tests if word in test['name']
        ]
        if not matches:
            close = difflib.get_close_matches(word, [test['name'] for test in tests], 3, 0.4)
            sys.exit(
                f"error: no test has '{word}' in its name"
                + (f'; close are: {", ".join(close)}' if close else '')
            )
        found.update((test['name'], test) for test in matches)
    return list(found.values())


def after(words, script):
    """Returns the words of a command that follow a script of the tree, or None."""
    at = next((at for at, word in enumerate(words) if word.endswith(f'/tests/{script}')), None)
    return None if at is None else words[at + 1 :]


def preparations(commands):
    """Returns what the commands of tests need besides what is built: launchers, a Python for JAX,
    and environments of torch, which the commands name."""
    lines, environments = [], set()
    for words in commands:
        if runner := after(words, 'torch/run.py'):
            environments.add(runner[2])
        matrix = after(words, 'torch/matrix.py')
        if matrix is not None:
            environments |= {'base', *(word for word in matrix if word[0].isdigit())}
        if any(re.search(r'/tests/launchers/\w+\.py$', word) for word in words):
            lines.append('launchers')
        if after(words, 'jax/run.py'):
            lines.append('jax')
    if environments:
        lines.append(' '.join(['torch', *sorted(environments - {'base'})]))
    return sorted(set(lines))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    build, words = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    tests = introspect(build, 'tests')
    for name, count in collections.Counter(test['name'] for test in tests).items():
        if count > 1:
            sys.exit(f"error: {count} tests are called '{name}': each needs a name of its own")
    if words[0] == '--suite':
        tests = [
            test for test in tests if any(suite.endswith(f':{words[1]}') for suite in test['suite'])
        ]
    else:
        tests = chosen(tests, words)
    files = {target['id']: target['filename'][0] for target in introspect(build, 'targets')}
    for needed in dict.fromkeys(needed for test in tests for needed in test['depends']):
        print('target', pathlib.Path(files[needed]).relative_to(build))
    for line in preparations([test['cmd'] for test in tests]):
        print('prepare', line)
    for test in tests:
        print('test', test['name'])


if __name__ == '__main__':
    main()
