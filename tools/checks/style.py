#!/usr/bin/env python3
"""Sizes and form: files of at most 500 lines (the public header excepted), functions of at most 70, 132 columns, no tabs,
a first comment that says what the file is, and no fences. Files above 300 lines are named, without failing.
"""
import re

import harness

MAX_FILE, WARN_FILE, MAX_FUNCTION, MAX_COLUMNS = 500, 300, 70, 132
C_SUFFIXES = {'.h', '.c', '.cpp', '.inc', '.def'}
LONG_FILES_ALLOWED = {'include/fsccl/fsccl.h'}
# Comments and literals, blanked so that braces in them do not count.
SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|'
                     r'^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M)
NOT_A_FUNCTION = re.compile(r'\b(namespace|class|struct|union|enum|extern)\b[^()]*$|^\s*(extern)\b')

FENCE = re.compile(r'\batomic_thread_' r'fence\b')


def blank(match):
    return re.sub(r'[^\n]', ' ', match[0])


def functions(text):
    """(first line, lines) of each function: an outermost brace block after a parameter list, in namespaces and types."""
    text = SKIPPED.sub(blank, text)
    open_blocks = []  # (is a function, line where its declaration begins)
    start = 0
    for position, character in enumerate(text):
        if character == '{':
            head = text[start:position]
            inside = any(block[0] for block in open_blocks)
            is_function = not inside and '(' in head and not NOT_A_FUNCTION.search(head)
            lead = len(head) - len(head.lstrip())
            open_blocks.append((is_function, text.count('\n', 0, start + lead) + 1))
        elif character == '}' and open_blocks:
            is_function, first = open_blocks.pop()
            if is_function:
                yield first, text.count('\n', 0, position) + 2 - first
        if character in '{};':
            start = position + 1


def head_comment(path, lines):
    if path.suffix in C_SUFFIXES:
        if lines and lines[0].startswith(('//', '/*')):
            return True
        if path.stem.endswith('_test') and lines and lines[0].endswith(f'/{path.stem.removesuffix("_test")}.h"'):
            return True  # the header of its subject says what it is
        header = path.with_suffix('.h')  # what x.h says need not be said again in x.cpp
        return path.suffix != '.h' and header.is_file() and head_comment(header, header.read_text(encoding='utf-8').split('\n'))
    body = [line for line in lines if not line.startswith('#!')]
    return bool(body) and body[0].startswith(('#', '"""'))


def check_file(root, path):
    name = path.relative_to(root).as_posix()
    lines = path.read_text(encoding='utf-8').split('\n')
    if lines and lines[-1] == '':
        lines.pop()
    else:
        yield f'{name}:{len(lines)}: no newline at the end of the file'
    if len(lines) > MAX_FILE and name not in LONG_FILES_ALLOWED:
        yield f'{name}: {len(lines)} lines, at most {MAX_FILE} are allowed: divide it by concept'
    elif len(lines) > WARN_FILE:
        print(f'note: {name} has {len(lines)} lines, {WARN_FILE} are the aim')
    if not head_comment(path, lines):
        yield f'{name}:1: no comment at its head that says what the file is'
    for number, line in enumerate(lines, 1):
        if '\t' in line:
            yield f'{name}:{number}: a tab'
        if len(line) > MAX_COLUMNS:
            yield f'{name}:{number}: {len(line)} columns, at most {MAX_COLUMNS} are allowed'
        if line != line.rstrip():
            yield f'{name}:{number}: blanks at the end of the line'
        if FENCE.search(line):
            yield f'{name}:{number}: a fence: the thread sanitizer does not know it, and its build fails'
    if path.suffix in C_SUFFIXES - {'.def'}:  # tables, without functions
        for first, count in functions('\n'.join(lines)):
            if count > MAX_FUNCTION:
                yield f'{name}:{first}: a function of {count} lines, at most {MAX_FUNCTION} are allowed'


def check(root):
    files = list(harness.source_files(root, C_SUFFIXES | {'.py', '.sh'}))
    files += [path for path in (root / 'tools/demo', root / 'tools/test', root / '.ci/run') if path.is_file()]
    return [problem for path in files for problem in check_file(root, path)]


LONG_FUNCTION = '// x\nnamespace n {\nint f(int a) {\n' + '  a += 1;  // }\n' * 70 + '  return a;\n}\n}  // namespace n\n'
SAMPLES = [
    ('right', {'src/base/a.cpp': '// x\nint f() {\n  return 1;\n}\n', 'tools/a.sh': '#!/bin/sh\n# x\n'}, None),
    ('head comment in the header', {'src/base/a.cpp': 'int a;\n', 'src/base/a.h': '// x\n'}, None),
    ('test of a header', {'tests/unit/base/a_test.cpp': '#include "base/a.h"\n'}, None),
    ('test of nothing', {'tests/unit/base/a_test.cpp': '#include "base/b.h"\n'}, 'no comment at its head'),
    ('long file', {'src/base/a.cpp': '// x\n' * 501}, '501 lines'),
    ('long function', {'src/base/a.cpp': LONG_FUNCTION}, 'a.cpp:3: a function of 73 lines'),
    ('long member', {'src/base/a.h': '// x\nstruct S {\n  void f() {\n' + '    g();\n' * 70 + '  }\n};\n'},
     'a.h:3: a function of 72 lines'),
    ('long type is no function', {'src/base/a.h': '// x\nstruct S {\n' + '  int a = f();\n' * 80 + '};\n'}, None),
    ('columns', {'src/base/a.cpp': '// x' + 'y' * 129 + '\n'}, '133 columns'),
    ('tab', {'src/base/a.cpp': '// x\n\tint a;\n'}, 'a.cpp:2: a tab'),
    ('trailing blank', {'src/base/a.cpp': '// x \n'}, 'blanks at the end'),
    ('fence', {'src/base/a.cpp': '// x\nint f() {\n  std::atomic_thread_' 'fence(order);\n}\n'}, 'a.cpp:3: a fence'),
    ('no head comment', {'src/base/a.cpp': 'int a;\n'}, 'no comment at its head'),
    ('no head comment in a script', {'tools/demo': '#!/bin/sh\nset -e\n'}, 'no comment at its head'),
    ('no newline', {'src/base/a.cpp': '// x'}, 'no newline'),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
