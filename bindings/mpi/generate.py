#!/usr/bin/env python3
"""Makes symbols.c, which has every symbol of symbols.txt that is not written by hand, and
symbols.h, which has the numbers of the constants.

usage: generate.py SYMBOLS SOURCE HEADER

A constant is stored in eight bytes. A reader takes an int (its low half), a handle or an address
from there, which works because jaxlib is made for little-endian machines only. A missing function
writes its name and returns an error of MPI. It reads no argument, so one form serves all
signatures.
"""

import sys


def groups(path):
    """Returns {group: [(name, value or None)]} for the file."""
    found, group = {}, None
    with open(path, encoding='utf-8') as file:
        for line in file:
            line = line.strip()
            if line.startswith('['):
                group = found.setdefault(line[1:-1], [])
            elif line and not line.startswith('#'):
                for word in line.split():
                    name, _, value = word.partition('=')
                    group.append((name, int(value) if value else None))
    return found


def full(name):
    """Returns a symbol's names for the program and in the ABI."""
    if name.startswith('MPIX_'):
        return name, name.replace('MPIX_', 'MPIXABI_')
    return 'MPI_' + name, 'MPIABI_' + name


def numbered(members):
    taken = {value for _, value in members if value is not None}
    number = 0
    for name, value in members:
        if value is None:
            number += 1
            while number in taken:
                number += 1
            value = number
        yield name, value


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    found = groups(sys.argv[1])
    source = [
        '/* Generated from symbols.txt. */',
        '#include <stdint.h>',
        '#define EXPORT __attribute__((visibility("default")))',
        'int fsccl_mpi_missing(const char* name);',
    ]
    header = [
        '// Generated from symbols.txt: the numbers of the constants.',
        '#pragma once',
        '#include <cstdint>',
        'namespace fsccl_mpi {',
    ]
    for group in ('constants', 'errors', 'datatypes', 'operators', 'others'):
        kind = 'int' if group in ('constants', 'errors') else 'uintptr_t'
        for name, value in numbered(found[group]):
            source.append(f'EXPORT const int64_t {full(name)[1]} = {value};')
            header.append(f'inline constexpr {kind} k{name} = static_cast<{kind}>({value});')
    header += ['struct Name {', '  uintptr_t number;', '  const char* name;', '};']
    for group in ('datatypes', 'operators'):
        header.append(f'inline constexpr Name k{group.capitalize()}Names[] = {{')
        header += [f'    {{{value}, "{full(name)[0]}"}},' for name, value in numbered(found[group])]
        header.append('};')
    header.append('}  // namespace fsccl_mpi')
    for group, result, after in (
        ('missing functions', 'int', ''),
        ('missing functions of a handle', 'int64_t', ' & 0'),
    ):
        for name, _ in found[group]:
            mpi, abi = full(name)
            source.append(
                f'EXPORT {result} {abi}(void) {{ return fsccl_mpi_missing("{mpi}"){after}; }}'
            )
    for path, lines in ((sys.argv[2], source), (sys.argv[3], header)):
        with open(path, 'w', encoding='utf-8') as file:
            file.write('\n'.join(lines) + '\n')


if __name__ == '__main__':
    main()
