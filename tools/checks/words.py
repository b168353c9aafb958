#!/usr/bin/env python3
"""Words that do not belong in the tree: notes of unfinished work, paths of somebody's machine,
numbers of a tracker that a reader may not have, calls of C that the project does without, and words
that the glossary has replaced.

Comments of C, C++, Python, Meson and shell are plain sentences: no comment, and no sentence of one,
begins with a word that leaves the subject out ("Of a rank: its line", "Whether it is there"), none
is a clause alone ("Where the ranks meet."), and none says "whom". Documents may ask, but state nothing with such a beginning.
"""

import ast
import pathlib
import re

import harness

RULES = [
    (
        re.compile(r'\b(TODO|FIXME|XXX|HACK)\b'),
        'unfinished work: finish it, or say plainly what does not exist',
    ),
    (
        re.compile(r'(?<![\w.>:}/-])/(?:work|home|root|Users)/\w'),
        'a path of one machine',
    ),
    (
        re.compile(r'\b[Ii]ssue #?\d+|\(#\d+\)'),
        'a number of a tracker: say what it is about',
    ),
    (re.compile(r'\bprototype\b', re.I), 'text describes what is, not what was tried'),
    # Words that docs/glossary.md has replaced.
    (re.compile(r'registrar', re.I), 'ranks register at the rendezvous'),
    (re.compile(r'\bdeparted\b', re.I), 'a lost rank is dead or has left'),
    (re.compile(r'\b[Rr]ooms\b'), 'a folder is a folder, and room is space'),
]
C_RULES = [
    (re.compile(r'\bgoto\b(?=\s+\w+;)'), 'use a function or RAII'),
    (
        re.compile(r'(?<![\w:.>])(?:std::)?(ato[ifl]|strcpy|strcat|sprintf|gets|strtok)\('),
        'a call that cannot report an error',
    ),
    (re.compile(r'\b(here|settle)\('), 'a name says what it gives or does'),
    # Words that plans, units and pools have replaced.
    (re.compile(r'\btabled\b'), 'peers know an address from an exchange or from a signal'),
    (re.compile(r'\b[Ll]azy\b'), 'a plan completes early'),
    (re.compile(r'\bfold(?:s|ed|ing)?\b'), 'ranks reduce'),
    (
        re.compile(r'\bfree_since\b|\brelease counters?\b', re.I),
        'a rank releases bytes by release positions (pool/host/release_ledger.h)',
    ),
]
OPENERS = 'Of|What|Who|Whose|Whom|Whether|Likewise|Those'
FRAGMENT = re.compile(
    rf"""^(?:\.\.\.|(?:{OPENERS}|{OPENERS.lower()})\b)  # the comment begins so
    |[.!?]['")]*\s+(?:{OPENERS})\b                   # a sentence of it does
    |\bwhom\b""",
    re.X,
)
# Matches a clause that says when or where, without a comma and a sentence that would say what
# happens then.
SUBORDINATE = 'Where|When|As|While|Until|Unless|Because|Though|Although|Since|Which'
CLAUSE = re.compile(
    rf"""(?:^|[.!?]['")]*\s+)(?:{SUBORDINATE})\b[^.?!,]*(?:[.?!](?=['")]*(?:\s|$))|$)"""
)
# Matches a sentence of a document with its end, which must be a question.
OPENED = re.compile(rf"""(?:^|[.!?:]['")*]*\s+)(?:{OPENERS})\b[^.?!]*[.?!]?""")
MARKS = {'//': ('//', '"'), '#': ('#', '"\'')}  # signs of comments, quotes of texts
BLOCK = re.compile(r'/\*(.*?)\*/', re.S)
TEXT = {'.md', '.py', '.sh', '.build', '.txt', '.json'}
CODE = {'.h', '.hpp', '.c', '.cpp', '.cu', '.inc', '.def', '.map'}


def line_comments(lines, mark):
    """Yields (number of the first line, text) for each comment that begins with `mark`."""
    sign, quotes = MARKS[mark]
    whole = re.compile(rf'^\s*{sign} ?(.*)$')
    # Matches a comment behind code. A sign inside a text begins no comment: the number of quotes
    # before it is odd.
    trailing = re.compile(rf'^(.*\S)\s+{sign} (.*)$')
    block, begin = [], 0
    for number, line in enumerate([*lines, ''], 1):
        match = whole.match(line)
        if match:
            begin = begin or number
            block.append(match[1])
            continue
        if block:
            yield begin, ' '.join(block)
            block, begin = [], 0
        match = trailing.match(line)
        if match and not any(match[1].count(quote) % 2 for quote in quotes):
            yield number, match[2]


def block_comments(text):
    """Yields the same as line_comments() for each comment of C between its two marks."""
    for match in BLOCK.finditer(text):
        lines = [re.sub(r'^\s*\*? ?', '', line) for line in match[1].split('\n')]
        yield text.count('\n', 0, match.start()) + 1, ' '.join(lines).strip()


def docstrings(text):
    """Yields the same as line_comments() for each description of a module, class or function of
    Python."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if said := ast.get_docstring(node):
                yield node.body[0].lineno, ' '.join(said.split())


def comments(path, text):
    if path.suffix in CODE - {'.map'}:
        yield from line_comments(text.split('\n'), '//')
        yield from block_comments(text)
    elif path.suffix in {'.py', '.sh', '.build', ''}:
        yield from line_comments(text.split('\n'), '#')
        if path.suffix == '.py':
            yield from docstrings(text)


def said_in(text):
    """Yields (number of the first line, text) for each paragraph and list entry of a document,
    without headings, tables and code."""
    text = re.sub(r'^( *)```.*?^\1```', lambda m: '\n' * m[0].count('\n'), text, flags=re.M | re.S)
    block, begin = [], 0
    for number, line in enumerate([*text.split('\n'), ''], 1):
        entry = re.match(r'^ *(?:[-*]|1\.) (?=\S)', line)
        if block and (entry or not line.strip()):
            yield begin, ' '.join(block)
            block = []
        if line.strip() and not line.startswith(('#', '|')):
            begin = begin if block else number
            block.append(line[entry.end() :] if entry else line.strip())


def fragments_of_document(name, text):
    for number, said in said_in(text):
        for match in OPENED.finditer(said):
            if not match[0].rstrip().endswith('?'):
                words = match[0].lstrip(""".!?:)'"* """)[:50]
                yield f'{name}:{number}: "{words}": a sentence has its subject'


def fragments(name, path, text):
    for number, said in comments(path, text):
        match = FRAGMENT.search(said) or CLAUSE.search(said)
        if match and not match[0].endswith('?'):
            words = said[match.start() : match.start() + 50].lstrip(""".!?)'" """).strip()
            yield f'{name}:{number}: "{words}": a comment is a sentence with its subject'


def check(root):
    problems = []
    files = list(harness.source_files(root, TEXT | CODE, harness.CODE_FOLDERS + ('docs', '.ci')))
    single = ('meson.build', 'tools/demo', 'tools/test', '.ci/run')
    files += [
        path
        for path in [*sorted(root.glob('*.md')), *(root / name for name in single)]
        if path.is_file()
    ]
    for path in files:
        if path == pathlib.Path(__file__).resolve():  # this file contains the words
            continue
        own = (
            path.suffix in CODE and path.relative_to(root).parts[0] != 'tests'
        )  # a test may trust its own input
        rules = RULES + (C_RULES if own else [])
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding='utf-8')
        problems += fragments(name, path, text)
        if path.suffix == '.md':
            problems += fragments_of_document(name, text)
        for pattern, reason in rules:
            for match in pattern.finditer(text):
                number = text.count('\n', 0, match.start()) + 1
                problems.append(f'{name}:{number}: "{match[0]}": {reason}')
    return problems


SAMPLES = [
    (
        'right',
        {
            'src/base/a.cpp': '// All done.\nint a = strtol(b);\n',
            'README.md': 'https://host/home/page, docs/work/x\n',
        },
        None,
    ),
    ('unfinished', {'src/base/a.cpp': '// TODO later\n'}, 'unfinished work'),
    ('path', {'docs/a.md': 'in `/work/x`\n'}, 'a path of one machine'),
    ('tracker', {'README.md': 'see issue 12\n'}, 'a number of a tracker'),
    ('history', {'src/base/a.h': '// as in the prototype\n'}, 'what was tried'),
    ('jump', {'src/base/a.cpp': '  goto done;\n'}, 'use a function'),
    ('unsafe call', {'examples/a.c': 'int x = atoi(text);\n'}, 'cannot report'),
    (
        'sentences',
        {
            'src/base/a.h': '// Returns the ranks of those hosts. "What?" is a text.\nint a;  // bytes of b\n'
        },
        None,
    ),
    ('text', {'src/base/a.cpp': 'auto a = "http: // Of";\n'}, None),
    (
        'subject left out',
        {
            'src/comm/a.h': '// Of two ranks of another engine, whose board it shares and which it fails'
            ' with:\n// that engine, and their numbers there.\n'
        },
        'src/comm/a.h:1: "Of two ranks of another engine',
    ),
    (
        'likewise',
        {
            'src/comm/a.h': '// Likewise, of ranks that work for this communicator: it fails with it.\n'
        },
        'a comment is a sentence',
    ),
    (
        'behind code',
        {'src/plan/a.h': 'int into;  // of the slot into which, all steps together, or 0\n'},
        'src/plan/a.h:1: "of the slot',
    ),
    (
        'second sentence',
        {'src/pool/a.h': '// Done. Of what was opened last, by whom it was opened.\n'},
        '"Of what was opened last',
    ),
    (
        'whom',
        {
            'src/base/a.h': '// Says if the rank that it waits for, and whom it wakes, may have entered.\n'
        },
        'a comment is a sentence',
    ),
    (
        'whether',
        {'src/base/a.h': '// Whether whom it waits for may have entered, and wait itself.\n'},
        '"Whether whom it waits for',
    ),
    (
        'clause alone',
        {'src/plan/a.h': '// Says so. Where the ranks meet.\n'},
        'src/plan/a.h:1: "Where the ranks meet.',
    ),
    (
        'clause without a comma',
        {'src/plan/a.h': '// As soon as it is there all go on.\n'},
        '"As soon',
    ),
    ('clause', {'src/plan/a.h': '// Where ranks meet, they wait. When? Later.\n'}, None),
    ('block', {'include/fsccl/a.h': '/*\n * Of hosts.\n */\n'}, 'include/fsccl/a.h:1: "Of hosts.'),
    ('test', {'tests/unit/a.cpp': 'int a;  // what a rank tells\n'}, '"what a rank tells'),
    ('Python', {'perf/a.py': 'a = "# Of"  # of the socket\n'}, 'perf/a.py:1: "of the socket'),
    (
        'description',
        {'bindings/a.py': 'def f():\n    """Whether it is there."""\n'},
        'bindings/a.py:2: "Whether it is there',
    ),
    ('Meson', {'src/meson.build': "# Of UCX the headers.\na = '# Of'\n"}, '"Of UCX the headers'),
    ('question', {'docs/a.md': 'Who waits? Rank 2.\n\n```\nOf\n```\n| What | x |\n'}, None),
    (
        'statement',
        {'docs/a.md': 'Well.\n\n- It is. What it\n  lacks is there.\n'},
        'docs/a.md:3: "What',
    ),
    ('registrar', {'src/a.cpp': 'int registrar_rank;\n'}, 'at the rendezvous'),
    ('departed', {'docs/a.md': 'Rank 2 has departed.\n'}, 'dead or has left'),
    ('rooms', {'src/README.md': 'The rooms of the code.\n'}, 'a folder is a folder'),
    ('room', {'src/README.md': 'A slot has room for them.\n'}, None),
    ('here', {'src/a.h': 'size_t here() const;\n'}, 'what it gives'),
    ('tabled', {'src/plan/a.h': 'bool tabled = false;\n'}, 'from an exchange'),
    ('lazy', {'src/plan/a.h': '// Lazy plans end sooner.\n'}, 'completes early'),
    ('fold', {'src/plan/a.cpp': '"the fold over all ranks"\n'}, 'ranks reduce'),
    ('folder', {'src/base/a.h': 'std::string folder;  // the folders of a process\n'}, None),
    ('release', {'src/pool/a.h': 'uint64_t free_since = 0;\n'}, 'release positions'),
    ('counter', {'src/plan/a.h': '// It has release counters.\n'}, 'release positions'),
    ('script', {'tools/demo': '# FIXME\n'}, 'unfinished work'),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
