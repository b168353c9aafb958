#!/usr/bin/env python3
"""Checks that every public symbol of include/fsccl is documented.

A comment directly above a declaration documents it and those that follow without a blank line (a
group). A type may instead have comments on its members.
"""

import re

import harness

# Matches one comment, or one declaration with the comment behind it. A declaration is a type with
# its members, or anything up to a semicolon.
STATEMENT = re.compile(
    r'(/\*.*?\*/)|#define[^\n]*(?:\\\n[^\n]*)*|'
    r'((?:typedef (?:struct|enum)[^{;]*\{.*?\}[^;]*;|[^;{}#/]+;)[ \t]*(?:/\*.*?\*/)?)',
    re.S,
)
TYPE_NAME = re.compile(r'}\s*(\w+)\s*;|typedef\s[^{}]*?\b(\w+)\s*;|\(\*(\w+)\)')
FUNCTION = re.compile(r'FSCCL_API\b(?!\s*__attribute__)[^;]*?\b(fsccl_\w+)\s*\(', re.S)
COMMENT = re.compile(r'/\*.*?\*/', re.S)


def paragraphs(text):
    """Yields (first line, text) of runs of lines without a blank line outside comments."""
    marked = COMMENT.sub(lambda match: match[0].replace('\n\n', '\n \n'), text)
    line = 1
    for part in re.split(r'\n\n', marked):
        yield line, part
        line += part.count('\n') + 2


def statements(paragraph):
    """Yields the declarations of a paragraph: (offset, text, has a comment directly above, has one
    inside or behind)."""
    above = False
    for match in STATEMENT.finditer(paragraph):
        if match[1]:
            above = True
        elif match[2]:
            yield match.start(2), match[2], above, '/*' in match[2]
            above = False


def check_header(name, text):
    for first_line, paragraph in paragraphs(text):
        group = False
        for offset, statement, above, inside in statements(paragraph):
            begins = offset + len(statement) - len(statement.lstrip())
            where = f'{name}:{first_line + paragraph.count(chr(10), 0, begins)}'
            function = FUNCTION.search(statement)
            type_name = TYPE_NAME.search(statement) if 'typedef' in statement else None
            documented = above or group or (inside and function is None)
            if function and not documented:
                yield f'{where}: {function[1]} has no comment'
            if type_name and not documented:
                yield f'{where}: the type {next(filter(None, type_name.groups()))} has no comment'
            group = above or group


def check(root):
    return [
        problem
        for path in sorted((root / 'include').rglob('*.h'))
        for problem in check_header(
            path.relative_to(root).as_posix(), path.read_text(encoding='utf-8')
        )
    ]


H = 'include/fsccl/a.h'
SAMPLES = [
    (
        'right',
        {
            H: '/* Says. */\nFSCCL_API int fsccl_a(int x);\nFSCCL_API int fsccl_b(\n    int y);\n\n'
            'typedef struct s {\n  int a; /* b */\n} s_t;\n'
        },
        None,
    ),
    (
        'function',
        {H: '/* A. */\nFSCCL_API int fsccl_a(void);\n\nFSCCL_API int fsccl_b(void);\n'},
        'a.h:4: fsccl_b has no comment',
    ),
    (
        'after a type',
        {H: 'typedef enum e {\n  E = 0 /* A. */\n} e_t;\nFSCCL_API int fsccl_b(void);\n'},
        'a.h:4: fsccl_b has no comment',
    ),
    ('struct', {H: '\n\ntypedef struct s {\n  int a;\n} s_t;\n'}, 'the type s_t has no comment'),
    ('enum', {H: 'typedef enum e {\n  E = 0\n} e_t;\n'}, 'the type e_t has no comment'),
    ('handle', {H: 'typedef struct s *s_t;\n'}, 'the type s_t has no comment'),
    (
        'comment too far away',
        {H: '/* A. */\n\nFSCCL_API int fsccl_a(void);\n'},
        'fsccl_a has no comment',
    ),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
