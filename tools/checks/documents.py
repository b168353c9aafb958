#!/usr/bin/env python3
"""The documents agree with the tree: links lead somewhere, README.md shows the example as it is in
examples/hello.c, and docs/README.md lists every page. (docs/env.md has a check of its own,
tools/check_env_docs.sh.)
"""

import re

import harness

LINK = re.compile(r'\[[^\]]*\]\((?!\w+:|#)([^)#\s]+)(?:#[^)]*)?\)')
EXAMPLE = re.compile(r'/\* README begin \*/\n(.*?\n)[ \t]*/\* README end \*/', re.S)
SKIPPED = ('build', '.git')


def broken_links(root):
    for path in sorted(root.rglob('*.md')):
        if path.relative_to(root).parts[0].startswith(SKIPPED):
            continue
        for target in LINK.findall(path.read_text(encoding='utf-8')):
            if not (path.parent / target).exists():
                yield f'{path.relative_to(root)}: the link to {target} leads nowhere'


def example_drift(root):
    example = EXAMPLE.search((root / 'examples/hello.c').read_text(encoding='utf-8'))
    if example is None:
        yield 'examples/hello.c: the marks around the example are missing'
    elif example[1] not in (root / 'README.md').read_text(encoding='utf-8'):
        yield 'README.md: the example differs from the one in examples/hello.c; copy the lines between its marks'


def unlisted(root):
    index = root / 'docs/README.md'
    listed = set(LINK.findall(index.read_text(encoding='utf-8'))) if index.is_file() else set()
    for page in sorted((root / 'docs').glob('*.md')):
        if page != index and page.name not in listed:
            yield f'docs/README.md: {page.name} is missing'


def check(root):
    return [*broken_links(root), *example_drift(root), *unlisted(root)]


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
    ('changed example', {**GOOD, README: 'int b;\n'}, 'the example differs'),
    ('page that nobody finds', {**GOOD, 'docs/b.md': 'b\n'}, 'docs/README.md: b.md is missing'),
    ('no marks', {**GOOD, HELLO: 'int a;\n'}, 'marks'),
]

if __name__ == '__main__':
    harness.main(check, SAMPLES)
