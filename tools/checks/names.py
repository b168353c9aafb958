#!/usr/bin/env python3
"""Checks that each type has one definition: no two files of the library define a class, struct,
union or enum of the same name in the same namespace, unless the namespace has no name.

The linker takes two types of one name for one ([basic.def.odr]). It keeps the functions that the
compiler makes, such as destructors, for only one of the types. That goes unnoticed where they are
inlined, but elsewhere the stack is overwritten.
"""

import re

import harness

# The types of tests, tools and examples are in other programs.
FOLDERS = ('src', 'transports', 'allocators')
OPENS = re.compile(r'^(?:inline )?namespace(?: ([\w:]+))? \{$')
CLOSES = re.compile(r'^\}  // namespace')
DEFINES = re.compile(
    r'^(?:class|struct|union|enum(?: class| struct)?) (?:alignas\(\w+\) )?(\w+)(?: final)?(?: : .*)? \{'
)


def definitions(text):
    """Yields the names with their namespaces, and their lines."""
    spaces = []
    for number, line in enumerate(text.splitlines(), 1):
        if match := OPENS.match(line):
            spaces.append(match[1])
        elif CLOSES.match(line) and spaces:
            spaces.pop()
        elif (match := DEFINES.match(line)) and None not in spaces:
            yield '::'.join([*spaces, match[1]]), number


def check(root):
    problems, first = [], {}
    for path in harness.source_files(root, {'.h', '.cpp', '.cu'}, FOLDERS):
        for name, number in definitions(path.read_text(encoding='utf-8')):
            where = f'{path.relative_to(root)}:{number}'
            if name in first:
                problems.append(
                    f'{where}: {name} is defined in {first[name]}, too: give one of them another '
                    f'name'
                )
            else:
                first[name] = where
    return problems


SAMPLES = [
    (
        'right',
        {
            'src/a/a.h': 'namespace fsccl {\nclass A {\n};\n}  // namespace fsccl\n',
            'src/b/b.h': 'namespace fsccl {\nclass A;\nclass B final : public A {\n};\n}  // namespace fsccl\n',
        },
        None,
    ),
    (
        'classes',
        {
            'src/a/a.h': 'namespace fsccl {\nclass A {\n};\n}  // namespace fsccl\n',
            'src/b/b.h': 'namespace fsccl {\nstruct A {\n};\n}  // namespace fsccl\n',
        },
        'fsccl::A is defined in src/a/a.h:2',
    ),
    (
        'of one file',
        {
            'src/a/a.cpp': 'namespace fsccl {\nstruct A {};\n}  // namespace fsccl\n',
            'transports/b/b.cpp': 'namespace fsccl {\nenum class A : int { one };\n}  // namespace fsccl\n',
        },
        'fsccl::A is defined',
    ),
    (
        'other namespaces',
        {
            'src/a/a.h': 'namespace fsccl {\nstruct A {};\n}  // namespace fsccl\n',
            'src/b/b.h': 'namespace fsccl::b {\nstruct A {};\n}  // namespace fsccl::b\n',
        },
        None,
    ),
    (
        'without a name',
        {
            'src/a/a.cpp': 'namespace fsccl {\nnamespace {\n\nstruct A {};\n\n}  // namespace\n}  // namespace fsccl\n',
            'src/b/b.cpp': 'namespace fsccl {\nstruct A {};\n}  // namespace fsccl\n',
        },
        None,
    ),
    (
        'behind one',
        {
            'src/a/a.cpp': 'namespace fsccl {\nnamespace {\n}  // namespace\nstruct A {};\n}  // namespace fsccl\n',
            'src/b/b.cpp': 'namespace fsccl {\nstruct A {};\n}  // namespace fsccl\n',
        },
        'fsccl::A is defined',
    ),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
