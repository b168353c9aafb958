#!/usr/bin/env python3
"""Checks that each #include obeys the order of the layers (src/README.md): a folder includes only
itself and lower ones.

Transports and allocators see little of the library. Examples and most tests see only the public
headers, and programs also src/base. INSIDERS are the folders that see everything.
"""

import re

import harness

PUBLIC = 'include/fsccl'
ORDER = [
    'src/base',
    'src/wire',
    'src/topo',
    'src/cuda',
    'src/kernels',
    'src/layout',
    'src/codec',
    'src/plan',
    'allocators',
    'src/bootstrap',
    'transports',
    'src/select',
    'src/record',
    'src/engine',
    'src/comm',
    'src/pool',
    'src/unit',
    'src/redistribute',
    'src/publish',
    'src/forecast',
    'src/api',
]
ALLOWED = {name: set(ORDER[: index + 1]) | {PUBLIC} for index, name in enumerate(ORDER)}
ALLOWED['allocators'] = {PUBLIC, 'src/base', 'src/cuda', 'allocators'}
ALLOWED['transports'] = {
    PUBLIC,
    'src/base',
    'src/wire',
    'src/cuda',
    'src/kernels',
    'src/plan',
    'transports',
}
ALLOWED[PUBLIC] = {PUBLIC}
# These test or measure the inside, so they may include all of it.
INSIDERS = (
    'tests/unit',
    'tests/conformance',
    'tests/fuzz',
    'tests/sim',
    'tests/stand_in/cuda/emulated_kernels',
    'perf/gpu',
    'perf/micro',
    'perf/pool',
    'perf/race',
)
# In tests/multi several processes meet before there is a communicator, so what joins them is tested
# below the public header. The test of a stand-in calls it as the library does.
EXTRA = {'tests/multi': {'src/base', 'src/bootstrap'}, 'tests/stand_in': {'src/base', 'src/cuda'}}
# Programs share a frame and the way to write output files (base/program.h).
PROGRAMS = {'tools': {'src/base'}, 'perf': {'src/base'}}
OUTSIDE = ('examples', 'tests', 'perf', 'tools', 'bindings')
# First parts of the names of our own headers. Other names in quotes are those of a library (as
# Highway requires) or of files beside the including one.
OURS = {'..', '.', 'fsccl', 'src', *OUTSIDE, *(name.split('/')[-1] for name in ORDER)}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


def folder_of(path):
    """Returns the layer, or the outside folder, to which a path relative to the root belongs, or
    None."""
    text = path.as_posix()
    for name in [*ORDER, PUBLIC, *OUTSIDE]:
        if text.startswith(name + '/'):
            return name
    return None


def resolve(root, path, name, quoted):
    """Returns the project's file that an include means, relative to the root, or None for a system
    header."""
    places = [root, root / 'include', root / 'src']
    if quoted:
        places.insert(0, path.parent)
    for place in places:
        candidate = (place / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root)
    return None


def allowed(source, source_folder, target, target_folder):
    if source_folder in ALLOWED:
        return target_folder in ALLOWED[source_folder]
    if source.as_posix().startswith(tuple(name + '/' for name in INSIDERS)):
        return True
    extra = EXTRA.get('/'.join(source.parts[:2]), set()) | PROGRAMS.get(source.parts[0], set())
    return target_folder in {source_folder, PUBLIC, *extra}


def check(root):
    root = root.resolve()
    problems = []
    for path in harness.source_files(root, {'.h', '.c', '.cpp', '.inc', '.def'}):
        source = path.relative_to(root)
        source_folder = folder_of(source)
        text = path.read_text(encoding='utf-8')
        for match in INCLUDE.finditer(text):
            where = f'{source}:{text.count(chr(10), 0, match.start(2)) + 1}'
            target = resolve(root, path, match[2], match[1] == '"')
            if source_folder is None:
                problems.append(
                    f'{where}: a source file in a folder that has no place in the order of layers'
                )
            elif target is None:
                if match[1] == '"' and match[2].split('/')[0] in OURS:
                    problems.append(f'{where}: "{match[2]}" names no file of the project')
            elif not allowed(source, source_folder, target, folder_of(target)):
                problems.append(f'{where}: {source_folder} may not include {target}')
    return problems


SAMPLES = [
    (
        'right',
        {
            'src/base/a.h': '#include <vector>\n',
            'src/unit/b.cpp': '#include "base/a.h"\n#include "src/base/a.h"\n',
        },
        None,
    ),
    (
        'upwards',
        {'src/unit/a.h': '', 'src/base/b.cpp': '#include "src/unit/a.h"\n'},
        'src/base may not include src/unit/a.h',
    ),
    (
        'relative',
        {'src/unit/a.h': '', 'src/base/b.cpp': '#include "../unit/a.h"\n'},
        'src/base may not include',
    ),
    (
        'angle brackets',
        {'src/api/a.h': '', 'src/plan/b.h': '#  include <api/a.h>\n'},
        'src/plan may not include',
    ),
    (
        'transport',
        {'src/engine/a.h': '', 'transports/shm/b.cpp': '#include "engine/a.h"\n'},
        'transports may not include',
    ),
    (
        'allocator',
        {'src/plan/a.h': '', 'allocators/placement/b.cpp': '#include "plan/a.h"\n'},
        'allocators may not include',
    ),
    (
        'example',
        {'src/base/a.h': '', 'examples/b.c': '#include "../src/base/a.h"\n'},
        'examples may not include',
    ),
    (
        'test from outside',
        {'src/base/a.h': '', 'tests/abi/b.cpp': '#include "base/a.h"\n'},
        'tests may not include',
    ),
    ('program', {'src/base/byte_size.h': '', 'perf/b.cpp': '#include "base/byte_size.h"\n'}, None),
    (
        'example of that',
        {'src/base/byte_size.h': '', 'examples/b.c': '#include "base/byte_size.h"\n'},
        'examples may not include',
    ),
    (
        'several processes',
        {'src/engine/a.h': '', 'tests/multi/b.cpp': '#include "engine/a.h"\n'},
        'tests may not include',
    ),
    ('program', {'src/base/a.h': '', 'tools/b.cpp': '#include "base/a.h"\n'}, None),
    (
        'inside of the library in a program',
        {'src/plan/a.h': '', 'perf/b.cpp': '#include "plan/a.h"\n'},
        'perf may not include',
    ),
    ('unit test', {'src/base/a.h': '', 'tests/unit/base/b.cpp': '#include "base/a.h"\n'}, None),
    ('missing', {'src/base/a.h': '#include "base/none.h"\n'}, 'names no file'),
    ('new folder', {'src/other/a.h': '#include <vector>\n'}, 'no place in the order'),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
