#!/usr/bin/env python3
"""Checks memory orders: a release or an acquire is half of a pair, and a comment says which other
half it has: "This store pairs with the load in find()." The comment stands on the line or at most 8
lines above it, so that one comment may speak for stores that follow each other.
"""

import re

import harness

FOLDERS = ('src', 'transports', 'allocators', 'bindings')
ORDER = re.compile(r'\bmemory_order(?:_|::)(release|acquire|acq_rel)\b')
COMMENT = re.compile(r'//.*\b(?:pair|pairs)\b', re.IGNORECASE)
ABOVE = 8


def check(root):
    problems = []
    for path in harness.source_files(root, {'.h', '.cpp'}, FOLDERS):
        lines = path.read_text(encoding='utf-8').split('\n')
        for at, line in enumerate(lines):
            found = ORDER.search(line.split('//')[0])
            if found and not any(COMMENT.search(one) for one in lines[max(0, at - ABOVE) : at + 1]):
                problems.append(
                    f'{path.relative_to(root).as_posix()}:{at + 1}: no comment says what this '
                    f'{found[1]} pairs with'
                )
    return problems


SAMPLES = [
    (
        'above',
        {
            'src/a.cpp': '// This store pairs with the load in f().\nx.store(1, std::memory_order_release);\n'
        },
        None,
    ),
    (
        'beside',
        {'src/a.h': 'y.load(std::memory_order_acquire);  // pairs with the store in g()\n'},
        None,
    ),
    (
        'stores that follow each other',
        {
            'transports/a.cpp': '// Each of these stores pairs with a load.\n'
            + 'x.store(1, std::memory_order_release);\n' * 8
        },
        None,
    ),
    ('other orders', {'src/a.cpp': 'x.store(1, std::memory_order_relaxed);\n'}, None),
    ('a test may', {'tests/a.cpp': 'x.store(1, std::memory_order_release);\n'}, None),
    (
        'no comment',
        {'allocators/a.cpp': '\nx.store(1, std::memory_order_release);\n'},
        'allocators/a.cpp:2: no comment says what this release pairs with',
    ),
    (
        'another comment',
        {'src/a.cpp': '// The last store.\nx.exchange(1, std::memory_order_acq_rel);\n'},
        'this acq_rel',
    ),
    (
        'too far above',
        {
            'src/a.cpp': '// It pairs with f().\n'
            + '\n' * 9
            + 'x.load(std::memory_order::acquire);\n'
        },
        'this acquire',
    ),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
