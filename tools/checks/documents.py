#!/usr/bin/env python3
"""Checks that the documents agree with the tree: links lead somewhere, files that are named exist,
files that are run as commands are programs, README.md shows the example as it is in
examples/hello.c, docs/README.md and docs/api/README.md list every page, the navigation of docs/site
has each page and each public header, the README of a folder of the library is short, and GitHub can
offer the templates of its issues.
(tools/check_env_docs.sh checks docs/env.md.)
"""

import os
import re

import harness

LINK = re.compile(r'\[[^\]]*\]\((?!\w+:|#)([^)#\s]+)(?:#[^)]*)?\)')
# Matches a file of the tree between backticks. A name in capitals, as in NAME.cpp, is a
# placeholder.
PATH = re.compile(
    r'`((?:src|include|transports|allocators|tests|tools|perf|bindings|examples|docs)/[a-z0-9_./]+\.[a-z]+)`'
)
# Matches a file of the tree that is run: at the beginning of a line of a block, or between
# backticks with arguments.
FOLDER = '(?:bindings|docs|examples|packaging|perf|tests|tools)'
BLOCK = re.compile(r'^```[^\n]*\n(.*?)^```', re.M | re.S)
IN_BLOCK = re.compile(rf'^(?:\w+=\S+ )*({FOLDER}/[\w./-]+)', re.M)
IN_TEXT = re.compile(rf'`(?:\w+=\S+ )*({FOLDER}/[\w./-]+) [^`]+`')
EXAMPLE = re.compile(r'/\* README begin \*/\n(.*?\n)[ \t]*/\* README end \*/', re.S)
SKIPPED = ('build', '.git/')
# A README of a folder in these lists the files. The heads of the files say the rest.
LIBRARY, MOST_LINES = ('src', 'transports', 'allocators'), 20


def documents(root):
    """Yields the documents of the tree, without those of builds and of environments of Python."""
    made = tuple(f'{path.parent.name}/' for path in root.glob('*/pyvenv.cfg'))
    for path in sorted(root.rglob('*.md')):
        if not path.relative_to(root).as_posix().startswith((*SKIPPED, *made)):
            yield path


def broken_links(root):
    for path in documents(root):
        for target in LINK.findall(path.read_text(encoding='utf-8')):
            if not (path.parent / target).exists():
                yield f'{path.relative_to(root)}: the link to {target} leads nowhere'


def missing_files(root):
    for path in documents(root):
        for name in PATH.findall(path.read_text(encoding='utf-8')):
            if not (root / name).exists():
                yield f'{path.relative_to(root)}: there is no {name}'


def no_programs(root):
    for path in documents(root):
        text = path.read_text(encoding='utf-8')
        names = IN_TEXT.findall(text)
        for block in BLOCK.findall(text):
            names += IN_BLOCK.findall(block)
        for name in sorted(set(names)):
            program = root / name
            if program.is_file() and not (
                os.access(program, os.X_OK) and program.read_bytes().startswith(b'#!')
            ):
                where = path.relative_to(root)
                yield f'{where}: {name} is run, and is no program: give it #! and chmod +x'


def headless_templates(root):
    for path in sorted((root / '.github/ISSUE_TEMPLATE').glob('*.md')):
        if not re.match(r'---\nname: .+\nabout: .+\n---\n', path.read_text(encoding='utf-8')):
            yield (
                f'{path.relative_to(root)}: GitHub offers a template only if it begins with lines '
                '"---", "name: ...", "about: ..." and "---"'
            )


def example_drift(root):
    example = EXAMPLE.search((root / 'examples/hello.c').read_text(encoding='utf-8'))
    if example is None:
        yield 'examples/hello.c: the marks around the example are missing'
    elif example[1] not in (root / 'README.md').read_text(encoding='utf-8'):
        yield 'README.md: the example differs from the one in examples/hello.c; copy the lines between its marks'


def unlisted(root):
    for folder in ('docs', 'docs/api'):
        index = root / folder / 'README.md'
        listed = set(LINK.findall(index.read_text(encoding='utf-8'))) if index.is_file() else set()
        for page in sorted((root / folder).glob('*.md')):
            if page != index and page.name not in listed:
                yield f'{folder}/README.md: {page.name} is missing'


def outside_the_site(root):
    site = root / 'docs/site'
    if not site.is_file():
        return
    named = set(re.findall(r"'([\w./]+)'", site.read_text(encoding='utf-8')))
    pages = [*(root / 'docs').glob('*.md'), *(root / 'docs/api').glob('*.md')]
    wanted = {page.stem for page in pages if page.name != 'README.md'}
    wanted |= {header.name for header in (root / 'include/fsccl').glob('*.h')}
    yield from (f'docs/site: {name} is missing' for name in sorted(wanted - named))


def long_readmes(root):
    for path in sorted(
        path for folder in LIBRARY for path in (root / folder).glob('*/**/README.md')
    ):
        lines = path.read_text(encoding='utf-8').count('\n')
        if lines > MOST_LINES:
            yield (
                f'{path.relative_to(root)}: {lines} lines, at most {MOST_LINES} are allowed: move '
                'what a file does to the head of the file'
            )


def check(root):
    return [
        *broken_links(root),
        *missing_files(root),
        *no_programs(root),
        *headless_templates(root),
        *example_drift(root),
        *unlisted(root),
        *outside_the_site(root),
        *long_readmes(root),
    ]


README, DOC, HELLO = 'README.md', 'docs/a.md', 'examples/hello.c'
GOOD = {
    README: 'x\nint a;\n[doc](docs/a.md#part) [web](https://a.b)\n',
    DOC: '[up](../README.md)\n',
    'docs/README.md': '[a](a.md)\n',
    HELLO: '/* README begin */\nint a;\n  /* README end */\n',
}
SAMPLES = [
    ('right', GOOD, None),
    (
        'broken link',
        {**GOOD, DOC: '[doc](none.md)\n'},
        'docs/a.md: the link to none.md leads nowhere',
    ),
    (
        'environment of Python',
        {**GOOD, 'env/pyvenv.cfg': '', 'env/lib/a.md': '[doc](none.md)\n'},
        None,
    ),
    (
        'broken link of a template',
        {**GOOD, '.github/a.md': '[doc](none.md)\n'},
        '.github/a.md: the link to none.md leads nowhere',
    ),
    (
        'long README',
        {**GOOD, 'src/a/README.md': 'a\n' * 21},
        'src/a/README.md: 21 lines, at most 20 are allowed',
    ),
    ('README of 20 lines', {**GOOD, 'src/a/README.md': 'a\n' * 20}, None),
    ('changed example', {**GOOD, README: 'int b;\n'}, 'the example differs'),
    ('page that nobody finds', {**GOOD, 'docs/b.md': 'b\n'}, 'docs/README.md: b.md is missing'),
    (
        'file that is gone',
        {**GOOD, DOC: 'see `src/base/a.h`\n'},
        'docs/a.md: there is no src/base/a.h',
    ),
    (
        'command in a block that is no program',
        {**GOOD, DOC: '```\nA=1 tools/a.py   # runs\n```\n', 'tools/a.py': '#!/x\n'},
        'docs/a.md: tools/a.py is run, and is no program',
    ),
    (
        'command in a sentence that is no program',
        {**GOOD, DOC: 'run `tools/a.py --all`\n', 'tools/a.py': '#!/x\n'},
        'docs/a.md: tools/a.py is run, and is no program',
    ),
    (
        'template that is not offered',
        {**GOOD, '.github/ISSUE_TEMPLATE/a.md': '______\n\n## name: A about: b\n'},
        '.github/ISSUE_TEMPLATE/a.md: GitHub offers',
    ),
    (
        'template that is offered',
        {**GOOD, '.github/ISSUE_TEMPLATE/a.md': '---\nname: A\nabout: b\n---\n'},
        None,
    ),
    ('file that is named', {**GOOD, DOC: 'see `tools/a.py`\n', 'tools/a.py': 'x\n'}, None),
    (
        'page of the API that nobody finds',
        {**GOOD, 'docs/api/c.md': 'c\n', 'docs/api/README.md': 'x\n'},
        'docs/api/README.md: c.md is missing',
    ),
    (
        'page that the site leaves out',
        {**GOOD, 'docs/site': "NAVIGATION = ('b',)\n"},
        'docs/site: a is missing',
    ),
    (
        'header that the site leaves out',
        {**GOOD, 'docs/site': "NAVIGATION = ('a',)\n", 'include/fsccl/x.h': '\n'},
        'docs/site: x.h is missing',
    ),
    ('no marks', {**GOOD, HELLO: 'int a;\n'}, 'marks'),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
