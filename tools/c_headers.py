# SPDX-License-Identifier: Apache-2.0
"""Reads the public C headers: their numbers, structs, callbacks and functions. The reader
understands only the plain style of include/fsccl (one typedef for each type, no unions, no bit
fields). It stops at a declaration that it does not understand, and quotes it."""

import dataclasses
import re

_POINTER = re.compile(r'^(?P<result>.*?)\(\s*\*\s*(?P<name>\w*)\s*\)\s*\((?P<parameters>.*)\)$')
_ENUM = re.compile(r'^typedef enum \w+ \{(.*)\} (\w+)$')
_STRUCT = re.compile(r'^typedef struct \w+ \{(.*)\} (\w+)$')
_HANDLE = re.compile(r'^typedef struct \w+ ?\* ?(\w+)$')
_FUNCTION = re.compile(r'^FSCCL_API (.*?)(\w+) ?\((.*)\)$')
_OTHERS_FUNCTION = re.compile(r'^(?!typedef)[\w *]+\(.*\)$')  # such as one that plug-ins define
_QUALIFIERS = re.compile(r'\b(const|struct)\b')


@dataclasses.dataclass(frozen=True)
class Type:
    """A C type: `name` with so many `stars`, in an array of `count` unless that is None. If
    `parameters` is not None, the type is a pointer to a function that returns `result`."""

    name: str = ''
    stars: int = 0
    count: int | None = None
    result: 'Type | None' = None
    parameters: 'tuple[Type, ...] | None' = None


@dataclasses.dataclass
class Struct:
    name: str
    fields: list[tuple[str, Type]]
    initial: list[str]  # values of the first fields in its ..._INIT macro, as C writes them


@dataclasses.dataclass
class Headers:
    numbers: dict[str, int]
    enums: set[str]
    handles: set[str]
    structs: dict[str, Struct]
    callbacks: dict[str, Type]
    functions: dict[str, Type]


def split(text, separator=','):
    """Returns the parts of `text` between separators that are in no bracket."""
    parts, depth = [''], 0
    for letter in text:
        depth += (letter in '({[') - (letter in ')}]')
        if letter == separator and depth == 0:
            parts.append('')
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _without_comments(text):
    text = re.sub(r'/\*.*?\*/|//[^\n]*', ' ', text, flags=re.DOTALL).replace('\\\n', ' ')
    return re.sub(r'#ifdef __cplusplus\n.*?#endif', '', text, flags=re.DOTALL)


def _declarations(text):
    """Yields the declarations, each on one line. A declaration ends with a semicolon or with the
    body of a function."""
    lines = [line for line in text.split('\n') if not line.lstrip().startswith('#')]
    found, depth = '', 0
    for letter in ' '.join(lines):
        depth += (letter in '({') - (letter in ')}')
        found += letter if letter != ';' or depth else ''
        body = letter == '}' and found.lstrip().startswith('static inline')
        if depth == 0 and (letter == ';' or body):
            yield re.sub(r'\s+', ' ', found).strip()
            found = ''
    if found.strip():
        raise ValueError(f'a declaration has no end: {found.strip()[:200]}')


class Reader:
    """Reads headers one after another. A header may use what those before it declare."""

    def __init__(self):
        self.found = Headers({}, set(), set(), {}, {}, {})
        self._macros = {}

    def read(self, text):
        text = _without_comments(text)
        for name, value in re.findall(r'^#define (\w+)[ \t]+(\S.*)$', text, flags=re.MULTILINE):
            self._macros[name] = value.strip()
            if (number := self._number(value)) is not None:
                self.found.numbers[name] = number
        for declaration in _declarations(text):
            self._declare(declaration)

    def _number(self, text):
        """Returns the value of an expression of numbers and known names, or None."""
        expression = re.sub(r'\b(\d+)[uU]\b', r'\1', text)
        expression = re.sub(
            r'\b[A-Z]\w*\b', lambda m: str(self.found.numbers.get(m[0], m[0])), expression
        )
        if not re.fullmatch(r'[\d\s()+*-]+', expression):
            return None
        return int(eval(expression, {'__builtins__': {}}))

    def _declare(self, text):
        if text.startswith('static ') or re.fullmatch(r'struct \w+', text):
            return
        if match := _ENUM.match(text):
            self._enum(*match.groups())
        elif match := _STRUCT.match(text):
            self._struct(*match.groups())
        elif match := _HANDLE.match(text):
            self.found.handles.add(match[1])
        elif match := _FUNCTION.match(text):
            result, name, parameters = match.groups()
            self.found.functions[name] = self._function(result, parameters)
        elif text.startswith('typedef ') and (match := _POINTER.match(text[8:])):
            result, name, parameters = match['result'], match['name'], match['parameters']
            self.found.callbacks[name] = self._function(result, parameters)
        elif not _OTHERS_FUNCTION.match(text):
            raise ValueError(f'this declaration is not understood: {text[:200]}')

    def _enum(self, body, name):
        value = -1
        for entry in split(body):
            word, _, given = (part.strip() for part in entry.partition('='))
            value = self._number(given) if given else value + 1
            if value is None:
                raise ValueError(f'{name}: the value of {entry} is not understood')
            self.found.numbers[word] = value
        self.found.enums.add(name)

    def _struct(self, body, name):
        fields = [field for part in split(body, ';') for field in self._fields(part)]
        macro = self._macros.get(name.removesuffix('_t').upper() + '_INIT', '')
        inner = macro.strip()[1:-1] if macro.startswith('{') else ''
        self.found.structs[name] = Struct(name, fields, split(inner))

    def _fields(self, text):
        """Returns (name, type) of each field of a declaration such as "const char *name,
        *value"."""
        if match := _POINTER.match(text):
            return [(match['name'], self._function(match['result'], match['parameters']))]
        first, *others = split(text)
        base = re.match(r'((?:const |struct |unsigned )*\w+)', first)[0]
        return [self._named(first), *(self._named(f'{base} {other}') for other in others)]

    def _named(self, text):
        """Returns (name, type) of "const void* data" and the like. The name may be missing."""
        if match := _POINTER.match(text):
            return match['name'], self._function(match['result'], match['parameters'])
        text = _QUALIFIERS.sub('', text)
        count = re.search(r'\[(.*)\]', text)
        words = re.findall(r'\w+', text[: count.start()] if count else text)
        base = ' '.join(words[:2]) if words[0] == 'unsigned' else words[0]
        rest = words[len(base.split()) :]
        if len(rest) > 1:
            raise ValueError(f'this type is not understood: {text}')
        length = self._number(count[1]) if count else None
        if count and length is None:
            raise ValueError(f'the length of an array is not understood: {text}')
        return rest[0] if rest else '', Type(base, text.count('*'), length)

    def _function(self, result, parameters):
        given = [] if parameters.strip() in ('', 'void') else split(parameters)
        return Type(
            result=self._named(result)[1],
            parameters=tuple(self._named(parameter)[1] for parameter in given),
        )


def read(paths):
    """Returns the Headers of some files. A header comes after those that it includes."""
    reader = Reader()
    for path in paths:
        reader.read(path.read_text(encoding='utf-8'))
    return reader.found
