"""Reads the results beside this script and makes tables of figures, for page.py."""

import json
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent
BEHIND = 1.05  # a ratio above it is bold


def load():
    """Returns every figure, oldest file first, with the fields of its file's first line."""
    rows = []
    for path in sorted(FOLDER.glob('*.jsonl')):
        head, *lines = [json.loads(line) for line in path.read_text('utf-8').splitlines()]
        if 'date' in head:
            rows += [{**head, **line, 'file': path.name} for line in lines]
    return rows


def of_kind(rows, kind):
    return [row for row in rows if row['kind'] == kind]


def newest(rows):
    """Keeps the newest figure of each case."""
    names = ('cpu', 'ranks', 'hosts', 'distance', 'operation', 'dtype', 'memory', 'bytes')
    return list({tuple(row.get(name) for name in names): row for row in rows}.values())


def size(count):
    if count is None:
        return ''
    for unit, factor in (('MiB', 1 << 20), ('KiB', 1 << 10)):
        if count >= factor:
            return f'{count // factor} {unit}'
    return f'{count} B'


def table(head, rows):
    return [
        '| ' + ' | '.join(head) + ' |',
        '| ' + ' | '.join('--' for _ in head) + ' |',
        *('| ' + ' | '.join(row) + ' |' for row in rows),
        '',
    ]


def ratio_text(value):
    return '' if value is None else f'**{value:.2f}**' if value > BEHIND else f'{value:.2f}'


def span(values, digits=2):
    low, high = min(values), max(values)
    low_text, high_text = f'{low:.{digits}f}', f'{high:.{digits}f}'
    return low_text if low_text == high_text else f'{low_text} to {high_text}'
