#!/usr/bin/env python3
"""The shared library exports fsccl_* alone, and every function that a public header declares.

usage: symbols.py ROOT LIBRARY | --self-test
"""

import pathlib
import re
import subprocess
import sys

DECLARED = re.compile(r'^FSCCL_API\b(?!\s*__attribute__)[^;]*?\b(fsccl_\w+)\s*\(', re.S | re.M)


def declared_functions(text):
    return set(DECLARED.findall(re.sub(r'/\*.*?\*/', ' ', text, flags=re.S)))


def exported_symbols(nm_output):
    """Returns the names that `nm -D --defined-only` prints, without versions and without the
    version nodes themselves, which are absolute symbols."""
    rows = [line.split() for line in nm_output.splitlines()]
    return {row[-1].split('@')[0] for row in rows if len(row) >= 3 and row[-2] != 'A'}


def compare(declared, exported):
    problems = [
        f'{name}: exported, but only fsccl_* may be: see src/api/fsccl.map'
        for name in sorted(exported)
        if not name.startswith('fsccl_')
    ]
    problems += [
        f'{name}: exported, but no public header declares it'
        for name in sorted(exported - declared)
        if name.startswith('fsccl_')
    ]
    problems += [
        f'{name}: declared in a public header, but not defined'
        for name in sorted(declared - exported)
    ]
    return problems if declared else problems + ['no function is declared: wrong folder?']


def self_test():
    declared = declared_functions(
        '/* FSCCL_API int fsccl_old(void); */\nFSCCL_API int fsccl_a(int x);\n'
        'FSCCL_API const char *fsccl_b(\n int y);\n'
    )
    good = '0000 T fsccl_a@@FSCCL_0\n0000 T fsccl_b@@FSCCL_0\n0000 A FSCCL_0@@FSCCL_0\n'
    cases = [
        (good, ''),
        (good + '0000 W _ZNSt6vectorIiE\n', 'only fsccl_*'),
        (good + '0000 T fsccl_c\n', 'no public header'),
        (good.replace('fsccl_b', 'fsccl_a'), 'fsccl_b: declared'),
    ]
    problems = (
        [] if declared == {'fsccl_a', 'fsccl_b'} else [f'declarations read wrongly: {declared}']
    )
    for output, expected in cases:
        found = compare(declared, exported_symbols(output))
        if bool(found) != bool(expected) or (expected and expected not in found[0]):
            problems.append(f'expected "{expected}", got {found}')
    return problems


def main():
    if sys.argv[1:] == ['--self-test']:
        problems = self_test()
    elif len(sys.argv) == 3:
        text = '\n'.join(
            path.read_text(encoding='utf-8')
            for path in sorted(pathlib.Path(sys.argv[1]).glob('include/fsccl/*.h'))
        )
        output = subprocess.run(
            ['nm', '-D', '--defined-only', sys.argv[2]], check=True, capture_output=True, text=True
        ).stdout
        problems = compare(declared_functions(text), exported_symbols(output))
    else:
        sys.exit(__doc__)
    print('\n'.join(problems + [f'{len(problems)} problems']))
    sys.exit(1 if problems else 0)


if __name__ == '__main__':
    main()
