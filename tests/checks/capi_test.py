#!/usr/bin/env python3
"""Tests the declarations for ctypes that tools/generate_capi.py writes: the files of the tree match
the headers, sizes and offsets are those of a C compiler, and a header in another style is refused.
usage: capi_test.py C-COMPILER..."""

import ctypes
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'tools'))
import c_headers
import generate_capi

ROOT = generate_capi.ROOT
TOOL = ROOT / 'tools/generate_capi.py'
COMPILER = sys.argv[1:]


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def headers():
    return c_headers.read(generate_capi.in_order(generate_capi.HEADERS))


def c_names(struct):
    return {generate_capi.RENAMED.get(name, name): name for name, _ in struct.fields}


def measured(structs, numbers):
    """Asks the compiler for sizes of structs, offsets of fields, values of numbers."""
    lines = ['#include <stddef.h>', '#include <stdio.h>', '#include "fsccl/allocator.h"']
    lines += [f'#include "fsccl/{path.name}"' for path in generate_capi.HEADERS]
    lines += ['int main(void) {']
    for struct in structs:
        lines.append(f'  printf("{struct.name} %zu\\n", sizeof({struct.name}));')
        for field in c_names(struct).values():
            place = f'offsetof({struct.name}, {field})'
            lines.append(f'  printf("{struct.name}.{field} %zu\\n", {place});')
    lines += [f'  printf("{name} %lld\\n", (long long)({name}));' for name in numbers]
    lines += ['  return 0;', '}', '']
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder) / 'a.c', pathlib.Path(folder) / 'a'
        source.write_text('\n'.join(lines), encoding='utf-8')
        include = f'-I{ROOT / "include"}'
        subprocess.run([*COMPILER, '-std=gnu11', include, source, '-o', program], check=True)
        told = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in told.splitlines())}


class Declarations(unittest.TestCase):
    def test_the_files_are_what_the_headers_say(self):
        done = subprocess.run([sys.executable, TOOL, '--check'], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_changed_header_is_noticed(self):
        found = headers()
        name, struct = next(iter(found.structs.items()))
        before = generate_capi.text_of(found, None)
        struct.fields.append(('more', c_headers.Type('uint64_t')))
        self.assertIn("('more', c_uint64)", generate_capi.text_of(found, None))
        self.assertNotIn("('more', c_uint64)", before, name)

    def test_sizes_offsets_and_numbers_are_the_compilers(self):
        found, ours = headers(), module(ROOT / 'bindings/torch/fsccl_torch/_header.py')
        structs = list(found.structs.values())
        told = measured(structs, found.numbers)
        for struct in structs:
            kind = getattr(ours, generate_capi.python_name(struct.name))
            self.assertEqual(ctypes.sizeof(kind), told.pop(struct.name), struct.name)
            for python, field in c_names(struct).items():
                place = f'{struct.name}.{field}'
                self.assertEqual(getattr(kind, python).offset, told.pop(place), place)
        for name, value in told.items():
            self.assertEqual(getattr(ours, name.removeprefix('FSCCL_')), value, name)
        self.assertGreater(len(told), 50)

    def test_first_values_are_those_of_the_macros(self):
        ours = module(ROOT / 'bindings/torch/fsccl_torch/_header.py')
        self.assertEqual(ours.ErrorInfo().rank, -1)
        self.assertEqual(ours.Param().tied_to, -1)
        self.assertEqual(ours.PoolConfig(record=0).record, 0)
        self.assertEqual(ours.PoolConfig().size, ctypes.sizeof(ours.PoolConfig))
        self.assertEqual(ours.Op(ours.OP_MIN, 0, 2.0).kind, ours.OP_MIN)

    def test_what_is_not_understood_is_refused(self):
        for text in (
            'typedef union fsccl_u { int a; } fsccl_u_t;',
            'typedef struct fsccl_s { int flag : 1; } fsccl_s_t;',
            'typedef struct fsccl_s { int a[UNKNOWN]; } fsccl_s_t;',
            'typedef struct fsccl_s { strange_t a; } fsccl_s_t;',
        ):
            reader = c_headers.Reader()
            with self.assertRaises(ValueError, msg=text):
                reader.read(text)
                generate_capi.text_of(reader.found, None)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
