"""Checks that the HTML pages of programs are well formed and need nothing from elsewhere."""

import html.parser

from program import expect


class Page(html.parser.HTMLParser):
    """Checks that every tag is closed, nothing is loaded from elsewhere, and nothing runs."""

    void = {'meta', 'path', 'rect', 'circle'}

    def __init__(self):
        super().__init__()
        self.open, self.count = [], {}

    def handle_starttag(self, tag, attributes):
        self.count[tag] = self.count.get(tag, 0) + 1
        expect(tag not in ('script', 'link', 'img', 'iframe'), f'<{tag}> in a page')
        for name, value in attributes:
            expect(
                name not in ('src', 'href') and not name.startswith('on'),
                f'{name}="{value}" in a page',
            )
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.void:
            expect(self.open.pop() == tag, f'</{tag}> closes what is open')


def page_of(text):
    page = Page()
    page.feed(text)
    page.close()
    expect(page.open == [], f'every tag is closed: {page.open}')
    return page
