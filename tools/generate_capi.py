#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what include/fsccl declares as declarations for Python's ctypes, for the bindings, the
programs of perf/ and the tests. Usage: tools/generate_capi.py [--check]

--check writes nothing, and fails if a written file differs from what the headers say.
"""

import pathlib
import re
import sys
import textwrap

import c_headers

ROOT = pathlib.Path(__file__).resolve().parents[1]
# All headers but transport.h, which only plug-ins include, and those are compiled.
HEADERS = [p for p in (ROOT / 'include/fsccl').glob('*.h') if p.name != 'transport.h']
# Each file, with the structs to which it is limited, or None if it has all that the headers
# declare.
FILES = {
    'bindings/torch/fsccl_torch/_header.py': None,
    'bindings/jax/fsccl_jax/_header.py': ('fsccl_counters_t',),
}
WIDTH = 100
SCALARS = {
    'char': ('c_char', 'bytes'),
    'unsigned char': ('c_ubyte', 'int'),
    'int': ('c_int', 'int'),
    'double': ('c_double', 'float'),
    'float': ('c_float', 'float'),
    'size_t': ('c_size_t', 'int'),
    'ssize_t': ('c_ssize_t', 'int'),
    'int32_t': ('c_int32', 'int'),
    'int64_t': ('c_int64', 'int'),
    'uint8_t': ('c_uint8', 'int'),
    'uint16_t': ('c_uint16', 'int'),
    'uint32_t': ('c_uint32', 'int'),
    'uint64_t': ('c_uint64', 'int'),
}
# Names that are keywords of Python.
RENAMED = {'from': 'from_'}
HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
# fmt: off
# ruff: noqa
"""The declarations of the headers in include/fsccl for ctypes. Written by
tools/generate_capi.py: change the headers, and run that. The names are those of C without "fsccl_":
fsccl_pool_config_t is PoolConfig, FSCCL_ERR_TIMEOUT is ERR_TIMEOUT. Handles and addresses are plain
integers."""

from __future__ import annotations

import ctypes
from ctypes import (
{imports}
)
from typing import Any, ClassVar


class Struct(ctypes.Structure):
    """A struct whose fields are at first what its ..._INIT macro in C says, and zero where that
    says nothing."""

    _initial_: ClassVar[dict[str, Any]] = {{}}

    def __init__(self, *values: Any, **named: Any) -> None:
        given = {{name for name, *_ in type(self)._fields_[: len(values)]}}
        first = {{name: value for name, value in self._initial_.items() if name not in given}}
        super().__init__(*values, **{{**first, **named}})


class Sized(Struct):
    """A struct that begins with its own size."""

    size: int

    def __init__(self, **named: Any) -> None:
        super().__init__(**{{'size': ctypes.sizeof(type(self)), **named}})

    def figures(self) -> dict[str, Any]:
        """The fields after the size, by name."""
        return {{name: getattr(self, name) for name, *_ in type(self)._fields_[1:]}}
'''
TAIL = '''

def declare(library: ctypes.CDLL) -> None:
    """Tells ctypes the parameters and the result of every function of the headers. AttributeError
    names one that `library` does not have."""
    for name, (result, parameters) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
'''


def python_name(name):
    """fsccl_pool_config_t -> PoolConfig."""
    words = name.removeprefix('fsccl_').removesuffix('_t').split('_')
    return ''.join(word.capitalize() for word in words)


class Writer:
    def __init__(self, headers):
        self.headers, self.used, self.written = headers, set(), set()

    def ctype(self, kind, known=None):
        """Returns the expression of a type. A struct that is not in `known` (None stands for all)
        must be behind a pointer, which becomes an address."""
        if kind.parameters is not None:
            result = 'None' if self._is_void(kind.result) else self.ctype(kind.result, known)
            words = [result, *(self.ctype(parameter, known) for parameter in kind.parameters)]
            return f'{self._use("CFUNCTYPE")}({", ".join(words)})'
        stars, base = kind.stars, self._base(kind, known)
        if base in ('void', 'c_char'):
            if stars == 0 and base == 'void':
                raise ValueError('a value of type void')
            if stars:
                base, stars = self._use('c_void_p' if base == 'void' else 'c_char_p'), stars - 1
        if base is None:
            return self._use('c_void_p')
        for _ in range(stars):
            base = f'{self._use("POINTER")}({base})'
        return f'{base} * {kind.count}' if kind.count is not None else base

    def _base(self, kind, known):
        """Returns the expression of a type without its stars, "void" unchanged, or None for a
        struct that is not declared yet."""
        name = kind.name
        if name == 'void':
            return name
        if name in SCALARS:
            return self._use(SCALARS[name][0])
        if name in self.headers.enums:
            return self._use('c_int')
        if name in self.headers.handles:
            return self._use('c_void_p')
        if name in self.headers.callbacks:
            return self.ctype(self.headers.callbacks[name], known)
        if name not in self.headers.structs:
            name = name if name.endswith('_t') else f'{name}_t'  # "struct fsccl_x*"
        if name not in self.headers.structs:
            raise ValueError(f'the type {kind.name} is not known')
        if known is not None and name not in known:
            if not kind.stars:
                raise ValueError(f'{name} is used before it is declared')
            return None
        return python_name(name)

    def _use(self, name):
        self.used.add(name)
        return name

    @staticmethod
    def _is_void(kind):
        return kind.name == 'void' and not kind.stars

    def annotation(self, kind):
        if kind.parameters is not None or kind.count is not None or kind.stars > 1:
            return 'Any'
        if kind.stars == 1:
            return {'char': 'bytes | None', 'void': 'int | None'}.get(kind.name, 'Any')
        if kind.name in SCALARS:
            return SCALARS[kind.name][1]
        if kind.name in self.headers.enums:
            return 'int'
        if kind.name in self.headers.handles:
            return 'int | None'
        return python_name(kind.name) if kind.name in self.headers.structs else 'Any'

    def struct(self, struct):
        """Returns the class of a struct, after the classes of the structs that it needs."""
        if struct.name in self.written:
            return ''
        self.written.add(struct.name)
        before = ''.join(self.struct(needed) for needed in self._needs(struct))
        sized = struct.fields[0][0] == 'size'
        lines = [f'class {python_name(struct.name)}({"Sized" if sized else "Struct"}):']
        fields = [(RENAMED.get(name, name), kind) for name, kind in struct.fields]
        for name, kind in fields[sized:]:
            lines.append(f'    {name}: {self.annotation(kind)}')
        known = self.written - {struct.name}
        words = [f'({name!r}, {self.ctype(kind, known)})' for name, kind in fields]
        lines += wrapped('    _fields_ = [', words, ']')
        initial = {}
        for (name, kind), text in zip(fields, struct.initial):
            if (value := self._initial(kind, text)) is not None:
                initial[name] = value
        if initial:
            words = [f'{name!r}: {value}' for name, value in initial.items()]
            lines += wrapped('    _initial_ = {', words, '}')
        return before + '\n\n' + '\n'.join(lines) + '\n'

    def _needs(self, struct):
        kinds = [kind for _, kind in struct.fields]
        for kind in kinds:
            kinds += [*(kind.parameters or ()), *([kind.result] if kind.result else [])]
            names = (kind.name, f'{kind.name}_t')
            yield from (self.headers.structs[n] for n in names if n in self.headers.structs)

    def _initial(self, kind, text):
        """Returns the first value of a field as Python writes it, or None if it is zero."""
        if text.startswith('{'):
            words = [
                self._initial(c_headers.Type(), part) or '0' for part in c_headers.split(text[1:-1])
            ]
            if all(word == '0' for word in words):
                return None
            return f'{python_name(kind.name)}({", ".join(words)})'
        if text.startswith('"'):
            return f'b{text}'
        number = self.headers.numbers.get(text)
        if number is not None:
            return str(number) if number else None
        if re.fullmatch(r'-?[\d.]+u?', text):
            return text.rstrip('u') if float(text.rstrip('u')) else None
        if text == 'NULL' or text.startswith('sizeof'):
            return None
        raise ValueError(f'the first value {text} is not understood')

    def constants(self):
        for name, value in self.headers.numbers.items():
            yield f'{name.removeprefix("FSCCL_")} = {value}'

    def functions(self):
        yield 'FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {'
        for name, kind in self.headers.functions.items():
            result = 'None' if self._is_void(kind.result) else self.ctype(kind.result)
            words = [self.ctype(parameter) for parameter in kind.parameters]
            yield from wrapped(f'    {name!r}: ({result}, [', words, ']),')
        yield '}'


def wrapped(begin, words, end):
    line = begin + ', '.join(words) + end
    if len(line) <= WIDTH:
        return [line]
    indent = ' ' * (len(begin) - len(begin.lstrip()))
    filled = textwrap.wrap(
        ', '.join(word.replace(' ', '\0') for word in words) + ',',
        WIDTH,
        initial_indent=indent + '    ',
        subsequent_indent=indent + '    ',
        break_long_words=False,
    )
    return [begin, *(text.replace('\0', ' ') for text in filled), indent + end]


def text_of(headers, structs):
    """Returns the text of a file. `structs` are the only ones that it has, or None."""
    writer = Writer(headers)
    classes = ''.join(
        writer.struct(struct)
        for name, struct in headers.structs.items()
        if structs is None or name in structs
    )
    parts = []
    if structs is None:
        parts = ['\n', *(line + '\n' for line in writer.constants())]
    parts.append(classes)
    if structs is None:
        parts += ['\n\n', *(line + '\n' for line in writer.functions()), TAIL]
    imports = '\n'.join(f'    {name},' for name in sorted(writer.used))
    return HEAD.format(imports=imports) + ''.join(parts)


def in_order(paths):
    """Returns the headers in an order in which each comes after those that it includes."""
    texts = {path: path.read_text(encoding='utf-8') for path in sorted(paths)}
    done = []

    def visit(path):
        if path in done:
            return
        for name in re.findall(r'#include "fsccl/([\w.]+)"', texts[path]):
            visit(path.with_name(name))
        done.append(path)

    for path in texts:
        visit(path)
    return done


def main():
    check = sys.argv[1:] == ['--check']
    if sys.argv[1:] and not check:
        sys.exit('usage: tools/generate_capi.py [--check]')
    headers = c_headers.read(in_order(HEADERS))
    stale = []
    for name, structs in FILES.items():
        path, text = ROOT / name, text_of(headers, structs)
        if check and (not path.is_file() or path.read_text(encoding='utf-8') != text):
            stale.append(name)
        elif not check:
            path.write_text(text, encoding='utf-8')
    if stale:
        sys.exit(f'{", ".join(stale)}: not what include/fsccl says: run tools/generate_capi.py')


if __name__ == '__main__':
    main()
