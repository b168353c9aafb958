#!/usr/bin/env python3
"""Checks sizes and form: files have at most 450 lines (700 outside of the library; the public
header and what is generated from it are excepted), functions at most 70 (90), lines at most 100
columns (132 in scripts, whose strings and commands do not break); there are no tabs and no fences,
and a first comment says what the file is. Files above 300 lines are named, but do not fail. Functions
that depend on the locale of the program are refused, because the meaning of a setting must not.
"""

import re

import harness

MAX_FILE, MAX_OTHER_FILE, WARN_FILE, MAX_FUNCTION = 450, 700, 300, 70
MAX_OTHER_FUNCTION = 90
MAX_COLUMNS, MAX_SCRIPT_COLUMNS = 100, 132
LIBRARY = ('src/', 'transports/', 'allocators/', 'include/', 'bindings/')
C_SUFFIXES = {'.h', '.c', '.cpp', '.inc', '.def'}
# The public header, and its generated declarations for Python.
LONG_FILES_ALLOWED = {'include/fsccl/fsccl.h', 'bindings/torch/fsccl_torch/_header.py'}
# Matches comments, literals and lines of the preprocessor, which are blanked so that their braces
# do not count.
SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|'
    r'^[ \t]*#(?:\\\n|[^\n])*',
    re.S | re.M,
)
NOT_A_FUNCTION = re.compile(r'\b(namespace|class|struct|union|enum|extern)\b[^()]*$|^\s*(extern)\b')

LOCALE_FOLDERS = ('src/', 'transports/', 'allocators/', 'tools/', 'perf/')
LOCALE = re.compile(
    r'#\s*include <(?:cctype|ctype\.h|locale\.h|clocale|locale)>|'
    r'\b(?:is(?:alnum|alpha|blank|cntrl|digit|graph|lower|print|punct|space|upper|xdigit)|'
    r'to(?:lower|upper)|strn?casecmp|strcoll|strto(?:d|f|ld)|ato[fil]|sto(?:d|f|ld)|setlocale)'
    r'\s*\('
)
FENCE = re.compile(r'\batomic_thread_' r'fence\b')


def blank(match):
    return re.sub(r'[^\n]', ' ', match[0])


def functions(text):
    """Yields (first line, number of lines) of each function, that is, of an outermost brace block
    after a parameter list, in namespaces and types."""
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
        if (
            path.stem.endswith('_test')
            and lines
            and lines[0].endswith(f'/{path.stem.removesuffix("_test")}.h"')
        ):
            return True  # the header of the tested code says what the test is about
        header = path.with_suffix('.h')  # x.cpp need not repeat the head of x.h
        return (
            path.suffix != '.h'
            and header.is_file()
            and head_comment(header, header.read_text(encoding='utf-8').split('\n'))
        )
    body = [line for line in lines if not line.startswith('#!')]
    return bool(body) and body[0].startswith(('#', '"""'))


def check_file(root, path):
    name = path.relative_to(root).as_posix()
    lines = path.read_text(encoding='utf-8').split('\n')
    if lines and lines[-1] == '':
        lines.pop()
    else:
        yield f'{name}:{len(lines)}: no newline at the end of the file'
    of_library = name.startswith(LIBRARY)
    most_lines = MAX_FILE if of_library else MAX_OTHER_FILE
    most_in_function = MAX_FUNCTION if of_library else MAX_OTHER_FUNCTION
    if len(lines) > most_lines and name not in LONG_FILES_ALLOWED:
        yield f'{name}: {len(lines)} lines, at most {most_lines} are allowed: divide it by concept'
    elif len(lines) > WARN_FILE:
        print(f'note: {name} has {len(lines)} lines, {WARN_FILE} are the aim')
    if not head_comment(path, lines):
        yield f'{name}:1: no comment at its head that says what the file is'
    most = MAX_COLUMNS if path.suffix in C_SUFFIXES else MAX_SCRIPT_COLUMNS
    for number, line in enumerate(lines, 1):
        if '\t' in line:
            yield f'{name}:{number}: a tab'
        if len(line) > most:
            yield f'{name}:{number}: {len(line)} columns, at most {most} are allowed'
        if line != line.rstrip():
            yield f'{name}:{number}: blanks at the end of the line'
        if FENCE.search(line) and name != 'tools/checks/style.py':
            yield f'{name}:{number}: a fence: the thread sanitizer does not know it, and its build fails'
    if path.suffix in C_SUFFIXES and name.startswith(LOCALE_FOLDERS):
        for number, line in enumerate(lines, 1):
            found = LOCALE.search(re.sub(r'//.*|"(?:\\.|[^"\\])*"', '', line))
            if found:
                yield (
                    f'{name}:{number}: "{found[0]}" depends on the locale of the program: use '
                    'base/ascii.h or std::from_chars()'
                )
    if path.suffix in C_SUFFIXES - {'.def'}:  # files of tables have no functions
        for first, count in functions('\n'.join(lines)):
            if count > most_in_function:
                yield (
                    f'{name}:{first}: a function of {count} lines, at most {most_in_function} are '
                    'allowed'
                )


def check(root):
    files = list(harness.source_files(root, C_SUFFIXES | {'.py', '.sh'}))
    files += [
        path
        for path in (root / 'tools/demo', root / 'tools/test', root / '.ci/run')
        if path.is_file()
    ]
    return [problem for path in files for problem in check_file(root, path)]


LONG_FUNCTION = (
    '// x\nnamespace n {\nint f(int a) {\n'
    + '  a += 1;  // }\n' * MAX_FUNCTION
    + '  return a;\n}\n}  // namespace n\n'
)
SAMPLES = [
    (
        'right',
        {'src/base/a.cpp': '// x\nint f() {\n  return 1;\n}\n', 'tools/a.sh': '#!/bin/sh\n# x\n'},
        None,
    ),
    ('head comment in the header', {'src/base/a.cpp': 'int a;\n', 'src/base/a.h': '// x\n'}, None),
    ('test of a header', {'tests/unit/base/a_test.cpp': '#include "base/a.h"\n'}, None),
    (
        'test of nothing',
        {'tests/unit/base/a_test.cpp': '#include "base/b.h"\n'},
        'no comment at its head',
    ),
    ('long file', {'src/base/a.cpp': '// x\n' * (MAX_FILE + 1)}, 'divide it'),
    (
        'long function',
        {'src/base/a.cpp': LONG_FUNCTION},
        f'a.cpp:3: a function of {MAX_FUNCTION + 3} lines',
    ),
    (
        'long member',
        {
            'src/base/a.h': '// x\nstruct S {\n  void f() {\n'
            + '    g();\n' * MAX_FUNCTION
            + '  }\n};\n'
        },
        f'a.h:3: a function of {MAX_FUNCTION + 2} lines',
    ),
    (
        'long type is no function',
        {'src/base/a.h': '// x\nstruct S {\n' + '  int a = f();\n' * (MAX_FUNCTION + 10) + '};\n'},
        None,
    ),
    ('long script', {'tools/a.py': '# x' + 'y' * 130 + '\n'}, '133 columns'),
    ('columns', {'src/base/a.cpp': '// x' + 'y' * 97 + '\n'}, '101 columns'),
    ('tab', {'src/base/a.cpp': '// x\n\tint a;\n'}, 'a.cpp:2: a tab'),
    ('trailing blank', {'src/base/a.cpp': '// x \n'}, 'blanks at the end'),
    (
        'fence',
        {'src/base/a.cpp': '// x\nint f() {\n  std::atomic_thread_fence(order);\n}\n'},
        'a.cpp:3: a fence',
    ),
    (
        'locale',
        {'src/base/a.cpp': '// x\nint f(char c) {\n  return std::tolower(c);\n}\n'},
        'a.cpp:3: "tolower(" depends on the locale',
    ),
    ('number in a locale', {'perf/a.cpp': '// x\ndouble a = std::strtod(b, c);\n'}, 'from_chars'),
    ('a function of the library', {'src/a.cpp': '// isalpha(c)\nbool a = is_digit(c);\n'}, None),
    ('no head comment', {'src/base/a.cpp': 'int a;\n'}, 'no comment at its head'),
    (
        'no head comment in a script',
        {'tools/demo': '#!/bin/sh\nset -e\n'},
        'no comment at its head',
    ),
    ('no newline', {'src/base/a.cpp': '// x'}, 'no newline'),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
