#!/usr/bin/env python3
"""Words that do not belong in the tree: notes of unfinished work, paths of somebody's machine, numbers of a tracker that
a reader may not have, and calls of C that the project does without.
"""
import re

import harness

# Each pattern is written in two pieces, so that this file does not find itself.
RULES = [
    (re.compile(r'\b(TO' r'DO|FIX' r'ME|XX' r'X|HA' r'CK)\b'), 'unfinished work: finish it, or say plainly what does not exist'),
    (re.compile(r'(?<![\w.>:}/-])/(?:wo' r'rk|ho' r'me|ro' r'ot|Us' r'ers)/\w'), 'a path of one machine'),
    (re.compile(r'\b[Ii]ss' r'ue #?\d+|\(#\d' r'+\)'), 'a number of a tracker: say what it is about'),
    (re.compile(r'\bproto' r'type\b', re.I), 'text describes what is, not what was tried'),
]
C_RULES = [
    (re.compile(r'\bgo' r'to\b(?=\s+\w+;)'), 'use a function or RAII'),
    (re.compile(r'(?<![\w:.>])(?:std::)?(ato' r'[ifl]|strc' r'py|strc' r'at|spri' r'ntf|ge' r'ts|strt' r'ok)\('),
     'a call that cannot report an error'),
]
TEXT = {'.md', '.py', '.sh', '.build', '.txt', '.json'}
CODE = {'.h', '.c', '.cpp', '.inc', '.def', '.map'}


def check(root):
    problems = []
    files = list(harness.source_files(root, TEXT | CODE, harness.CODE_FOLDERS + ('docs', '.ci')))
    single = ('meson.build', 'tools/demo', 'tools/test', '.ci/run')
    files += [path for path in [*sorted(root.glob('*.md')), *(root / name for name in single)] if path.is_file()]
    for path in files:
        own = path.suffix in CODE and path.relative_to(root).parts[0] != 'tests'  # a test may trust what it gives itself
        rules = RULES + (C_RULES if own else [])
        for number, line in enumerate(path.read_text(encoding='utf-8').split('\n'), 1):
            for pattern, reason in rules:
                match = pattern.search(line)
                if match:
                    problems.append(f'{path.relative_to(root)}:{number}: "{match[0]}": {reason}')
    return problems


SAMPLES = [
    ('right', {'src/base/a.cpp': '// All done.\nint a = strtol(b);\n', 'README.md': 'https://host/home/page, docs/work/x\n'}, None),
    ('unfinished', {'src/base/a.cpp': '// TO' 'DO later\n'}, 'unfinished work'),
    ('path', {'docs/a.md': 'in `/wo' 'rk/x`\n'}, 'a path of one machine'),
    ('tracker', {'README.md': 'see iss' 'ue 12\n'}, 'a number of a tracker'),
    ('history', {'src/base/a.h': '// as in the proto' 'type\n'}, 'what was tried'),
    ('jump', {'src/base/a.cpp': '  go' 'to done;\n'}, 'use a function'),
    ('unsafe call', {'examples/a.c': 'int x = ato' 'i(text);\n'}, 'cannot report'),
    ('script', {'tools/demo': '# FIX' 'ME\n'}, 'unfinished work'),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
