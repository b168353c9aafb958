#!/usr/bin/env python3
"""Words that do not belong in the tree: notes of unfinished work, paths of somebody's machine,
numbers of a tracker that a reader may not have, and calls of C that the project does without.

In the rooms of CLEAN, comments are plain sentences: no comment, and no sentence of one, begins with a
word that leaves the subject out ("Of a rank: its line", "What a rank tells", "Whether it is there"),
and none says "whom". A room is added to CLEAN when its comments have been rewritten.
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
# The rooms whose comments are plain sentences.
CLEAN = (
    'allocators/',
    'perf/',
    'src/api/',
    'src/base/',
    'src/bootstrap/',
    'src/comm/',
    'src/cuda/',
    'src/engine/',
    'src/forecast/',
    'src/layout/',
    'src/plan/',
    'src/pool/',
    'src/record/',
    'src/topo/',
    'src/unit/',
    'src/wire/',
    'tests/conformance/',
    'tests/faults/',
    'tests/fuzz/',
    'tests/gpu/',
    'tests/multi/',
    'tests/sim/',
    'tests/stand_in/',
    'tools/',
    'transports/',
)
OPENERS = 'Of|What|Who|Whose|Whom|Whether|Likewise|Those'
FRAGMENT = re.compile(
    rf"""^(?:\.\.\.|(?:{OPENERS}|{OPENERS.lower()})\b)  # the comment begins so
    |[.!?]['")]*\s+(?:{OPENERS})\b                   # a sentence of it does
    |\bwhom\b""",
    re.X,
)
COMMENT = re.compile(r'^\s*// ?(.*)$')
# A comment behind code. A "//" inside a text is none: the quotes before it are not even.
TRAILING = re.compile(r'^(.*\S)\s+// (.*)$')
TEXT = {'.md', '.py', '.sh', '.build', '.txt', '.json'}
CODE = {'.h', '.c', '.cpp', '.inc', '.def', '.map'}


def comments(lines):
    """Yields (number of the first line, text) for each comment of C++."""
    block, begin = [], 0
    for number, line in enumerate([*lines, ''], 1):
        whole = COMMENT.match(line)
        if whole:
            begin = begin or number
            block.append(whole[1])
            continue
        if block:
            yield begin, ' '.join(block)
            block, begin = [], 0
        trailing = TRAILING.match(line)
        if trailing and trailing[1].count('"') % 2 == 0:
            yield number, trailing[2]


def fragments(name, lines):
    for number, text in comments(lines):
        match = FRAGMENT.search(text)
        if match:
            said = text[match.start() : match.start() + 50].lstrip(""".!?)'" """).strip()
            yield f'{name}:{number}: "{said}": a comment is a sentence with its subject'


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
        name = path.relative_to(root).as_posix()
        if path.suffix in CODE - {'.c', '.map'} and name.startswith(CLEAN):
            problems += fragments(name, path.read_text(encoding='utf-8').split('\n'))
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
    (
        'sentences',
        {
            'src/base/a.h': '// Returns the ranks of those hosts. "What?" is a text.\nint a;  // bytes of b\n'
        },
        None,
    ),
    ('room that is not clean', {'src/kernels/a.h': '// Of two ranks of another engine.\n'}, None),
    ('text', {'src/base/a.cpp': 'auto a = "http: // Of";\n'}, None),
    (
        'subject left out',
        {
            'src/comm/a.h': '// Of two ranks of another engine, whose board it shares and which it fails'
            ' with:\n// that engine, and their numbers there.\n'
        },
        'src/comm/a.h:1: "Of two ranks of another engine',
    ),
    (
        'likewise',
        {
            'src/comm/a.h': '// Likewise, of ranks that work for this communicator: it fails with it.\n'
        },
        'a comment is a sentence',
    ),
    (
        'behind code',
        {'src/plan/a.h': 'int into;  // of the slot into which, all steps together, or 0\n'},
        'src/plan/a.h:1: "of the slot',
    ),
    (
        'second sentence',
        {'src/pool/a.h': '// Done. Of what was opened last, by whom it was opened.\n'},
        '"Of what was opened last',
    ),
    (
        'whom',
        {
            'src/base/a.h': '// Says if the rank that it waits for, and whom it wakes, may have entered.\n'
        },
        'a comment is a sentence',
    ),
    (
        'whether',
        {'src/base/a.h': '// Whether whom it waits for may have entered, and wait itself.\n'},
        '"Whether whom it waits for',
    ),
    ('script', {'tools/demo': '# FIXME\n'}, 'unfinished work'),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
