#!/usr/bin/env python3
"""Checks that include/fsccl/fsccl.h stays what a training framework needs: few functions, few
lines, short comments, and no other header of the project. Details are in docs/api.
"""

import re

import harness

HEADER = 'include/fsccl/fsccl.h'
MOST_FUNCTIONS, MOST_LINES, MOST_COMMENT_LINES = 60, 350, 15
COMMENT = re.compile(r'/\*.*?\*/', re.S)
# Matches a function with the comments directly above it, back to the declaration or the blank line
# before them.
FUNCTION = re.compile(
    r'((?:^[ \t]*/\*(?:[^*]|\*(?!/))*\*/\n)*)^FSCCL_API\b[^;]*?\b(fsccl_\w+)\s*\(', re.M
)
INCLUDE = re.compile(r'^\s*#\s*include\s*["<](fsccl/[^">]+)[">]', re.M)


def lines_of_code(text):
    return sum(1 for line in COMMENT.sub('', text).splitlines() if line.strip())


def check(root):
    text = (root / HEADER).read_text(encoding='utf-8')
    functions = [(match[2], match[1].count('\n')) for match in FUNCTION.finditer(text)]
    if not functions:
        return [f'{HEADER}: no function is declared']
    problems = [
        f'{HEADER}: {name} has {lines} lines of comment, at most {MOST_COMMENT_LINES} are allowed: '
        'move details to docs/api'
        for name, lines in functions
        if lines > MOST_COMMENT_LINES
    ]
    if len(functions) > MOST_FUNCTIONS:
        problems.append(
            f'{HEADER}: {len(functions)} functions, at most {MOST_FUNCTIONS} are allowed: what a '
            'training framework does not need belongs into insight.h'
        )
    if (lines := lines_of_code(text)) > MOST_LINES:
        problems.append(
            f'{HEADER}: {lines} lines without comments and blanks, at most {MOST_LINES} are allowed'
        )
    problems += [
        f'{HEADER}: includes {name}: programs include what they use'
        for name in INCLUDE.findall(text)
    ]
    return problems


def declared(count, comment='/* A. */'):
    return ''.join(f'{comment}\nFSCCL_API int fsccl_f{i}(void);\n\n' for i in range(count))


LONG = '/*\n' + ' * A.\n' * 14 + ' */'
SAMPLES = [
    ('right', {HEADER: '#include <stddef.h>\n' + declared(60)}, None),
    ('too many', {HEADER: declared(61)}, '61 functions'),
    ('none', {HEADER: 'int x;\n'}, 'no function'),
    ('long', {HEADER: declared(1) + 'int x;\n' * 350}, '351 lines'),
    ('comments are no lines', {HEADER: declared(1) + '/* A.\n * B. */\n\n' * 350}, None),
    ('comment', {HEADER: declared(1, LONG)}, 'fsccl_f0 has 16 lines of comment'),
    (
        'two comments',
        {
            HEADER: declared(
                1, '/*\n * A.\n' + ' * B.\n' * 6 + ' */\n' + '/*\n' + ' * B.\n' * 6 + ' */'
            )
        },
        '17 lines',
    ),
    ('include', {HEADER: '#include "fsccl/insight.h"\n' + declared(1)}, 'includes fsccl/insight.h'),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
