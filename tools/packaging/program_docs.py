#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a program's manual page and its completions for bash, zsh and fish, from what the program
itself says with --help.

usage: program_docs.py PROGRAM VERSION MANUAL_PAGE BASH ZSH FISH
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import completions

COLUMN = 30  # the column in which descriptions begin


class Entry(NamedTuple):
    """One line of a section: an option, a positional argument or a subcommand."""

    names: list
    value: str  # the words behind the name: the value's kind, the words it admits, its default
    text: str

    @property
    def words(self):
        """The words that are accepted as the value."""
        found = re.search(r'\{([^{}]*)\}', self.value)
        return found[1].split(',') if found else []

    @property
    def takes_a_value(self):
        return bool(re.sub(r'(Excludes|Needs):.*', '', self.value).strip())

    @property
    def is_number(self):
        return bool(re.search(r'\b(N|U?INT|FLOAT|SIZE)\b', self.value))


class Help(NamedTuple):
    about: str
    usage: str
    sections: dict  # name: list of Entry
    footer: str


def ask(*command):
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        sys.exit(
            f'program_docs.py: {" ".join(command)} ended with {done.returncode}:\n{done.stdout}'
        )
    return done.stdout


def entries(lines):
    """Returns the entries of a section. If a name is too long for its column, its description is in
    the lines below."""
    found, margin = [], ' ' * COLUMN
    for at, line in enumerate(lines):
        if line.startswith(margin):
            found[-1] = found[-1]._replace(text=f'{found[-1].text} {line.strip()}'.strip())
            continue
        long = len(line) <= COLUMN or (at + 1 < len(lines) and lines[at + 1].startswith(margin))
        name, text = (line.strip(), '') if long else (line[:COLUMN].strip(), line[COLUMN:].strip())
        first, _, value = name.partition(' ')
        found.append(Entry([re.sub(r'\{.*', '', word) for word in first.split(',')], value, text))
    return found


def parse(text, command):
    head, found, usage = (
        re.search(r'\A(.*?)^Usage: ([^\n]*)\n', text, re.DOTALL | re.MULTILINE),
        {},
        '',
    )
    if not head or not head[1].strip():
        sys.exit(
            f'program_docs.py: {command} --help is not text, then a line that begins with Usage:'
        )
    usage, rest, footer, section = head[2], text[head.end() :].splitlines(), [], None
    for line in rest:
        title = re.fullmatch(r'(Positionals|Options|Subcommands):', line, re.IGNORECASE)
        if title:
            section = found.setdefault(title[1].capitalize(), [])
        elif section is not None and line.startswith('  '):
            section.append(line)
        elif line.strip() or footer:
            section = None
            footer.append(line)
    return Help(
        head[1].strip(),
        usage,
        {name: entries(lines) for name, lines in found.items()},
        '\n'.join(footer).strip(),
    )


def roff(text):
    lines = text.replace('\\', '\\e').replace('-', '\\-').splitlines()
    return '\n'.join(f'\\&{line}' if line[:1] in ".'" else line for line in lines)


def options(help_text):
    lines = []
    for section in ('Positionals', 'Options'):
        for entry in help_text.sections.get(section, []):
            names = ', '.join(f'\\fB{roff(name)}\\fR' for name in entry.names)
            lines += ['.TP', f'{names} {roff(entry.value)}'.strip(), roff(entry.text) or '\\&']
    return lines


def manual(name, version, top, commands):
    summary = roff(re.split(r'\.\s|\.$', top.about)[0])
    lines = [
        f'.TH {name.upper()} 1 "" "FSCCL {version}" "User Commands"',
        '.ad l',
        '.SH NAME',
        f'{roff(name)} \\- {summary}',
        '.SH SYNOPSIS',
        f'.B {roff(top.usage)}',
        '.SH DESCRIPTION',
        roff(top.about),
        '.SH OPTIONS',
        *options(top),
    ]
    if commands:
        lines.append('.SH COMMANDS')
    for command, text in commands.items():
        lines += [
            f'.SS {roff(name)} {roff(command)}',
            roff(text.about),
            '.PP',
            f'\\fB{roff(text.usage)}\\fR',
            *options(text),
        ]
        if text.footer:
            lines += ['.PP', '.nf', roff(text.footer), '.fi']
    if top.footer:
        lines += ['.SH EXAMPLES', '.nf', roff(top.footer), '.fi']
    lines += [
        '.SH ENVIRONMENT',
        '\\fBfsccl\\-info config\\fR lists every variable with its value, its default and its '
        'meaning.',
        '.SH AUTHORS',
        'The FSCCL authors.',
    ]
    return '\n'.join(lines) + '\n'


def main():
    if len(sys.argv) != 7:
        sys.exit(__doc__)
    program, version, page, *completed = sys.argv[1:]
    name = Path(program).name
    top = parse(ask(program, '--help'), name)
    commands = {
        entry.names[0]: parse(ask(program, entry.names[0], '--help'), f'{name} {entry.names[0]}')
        for entry in top.sections.get('Subcommands', [])
    }
    Path(page).write_text(manual(name, version, top, commands), encoding='utf-8')
    for path, shell in zip(completed, (completions.bash, completions.zsh, completions.fish)):
        Path(path).write_text(shell(name, top, commands), encoding='utf-8')


if __name__ == '__main__':
    main()
