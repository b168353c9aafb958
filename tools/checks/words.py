#!/usr/bin/env python3
"""Words that do not belong in the tree: notes of unfinished work, paths of somebody's machine,
numbers of a tracker that a reader may not have, and calls of C that the project does without.
"""

import pathlib
import re

import harness

RULES = [
    (
        re.compile(r'\b(TODO|FIXME|XXX|HACK)\b'),
        'unfinished work: finish it, or say plainly what does not exist',
    ),
    (
        re.compile(r'(?<![\w.>:}/-])/(?:work|home|root|Users)/\w'),
        'a path of one machine',
    ),
    (
        re.compile(r'\b[Ii]ssue #?\d+|\(#\d+\)'),
        'a number of a tracker: say what it is about',
    ),
    (re.compile(r'\bprototype\b', re.I), 'text describes what is, not what was tried'),
]
C_RULES = [
    (re.compile(r'\bgoto\b(?=\s+\w+;)'), 'use a function or RAII'),
    (
        re.compile(r'(?<![\w:.>])(?:std::)?(ato[ifl]|strcpy|strcat|sprintf|gets|strtok)\('),
        'a call that cannot report an error',
    ),
]
TEXT = {'.md', '.py', '.sh', '.build', '.txt', '.json'}
CODE = {'.h', '.c', '.cpp', '.inc', '.def', '.map'}


def check(root):
    problems = []
    files = list(harness.source_files(root, TEXT | CODE, harness.CODE_FOLDERS + ('docs', '.ci')))
    single = ('meson.build', 'tools/demo', 'tools/test', '.ci/run')
    files += [
        path
        for path in [*sorted(root.glob('*.md')), *(root / name for name in single)]
        if path.is_file()
    ]
    for path in files:
        if path == pathlib.Path(__file__).resolve():  # it holds the words itself
            continue
        own = (
            path.suffix in CODE and path.relative_to(root).parts[0] != 'tests'
        )  # a test may trust what it gives itself
        rules = RULES + (C_RULES if own else [])
        for number, line in enumerate(path.read_text(encoding='utf-8').split('\n'), 1):
            for pattern, reason in rules:
                match = pattern.search(line)
                if match:
                    problems.append(f'{path.relative_to(root)}:{number}: "{match[0]}": {reason}')
    return problems


SAMPLES = [
    (
        'right',
        {
            'src/base/a.cpp': '// All done.\nint a = strtol(b);\n',
            'README.md': 'https://host/home/page, docs/work/x\n',
        },
        None,
    ),
    ('unfinished', {'src/base/a.cpp': '// TODO later\n'}, 'unfinished work'),
    ('path', {'docs/a.md': 'in `/work/x`\n'}, 'a path of one machine'),
    ('tracker', {'README.md': 'see issue 12\n'}, 'a number of a tracker'),
    ('history', {'src/base/a.h': '// as in the prototype\n'}, 'what was tried'),
    ('jump', {'src/base/a.cpp': '  goto done;\n'}, 'use a function'),
    ('unsafe call', {'examples/a.c': 'int x = atoi(text);\n'}, 'cannot report'),
    ('script', {'tools/demo': '# FIXME\n'}, 'unfinished work'),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
