#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the manual pages and completions. They agree with the programs' --help, groff has no
warning about the pages, bash completes with them, and zsh and fish read theirs if they are
installed.

usage: program_docs_test.py PAGE BASH ZSH FISH PROGRAM
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path


def run(*command):
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f'{command}: {done.stdout}'
    return done.stdout


def said(text):
    """Returns the long options and the subcommands in the text of --help."""
    commands = re.findall(r'^  ([a-z]+) {3,}\S', text.partition('Subcommands:')[2], re.MULTILINE)
    return re.findall(r'^  (?:-\w,)?(--[\w-]+)', text, re.MULTILINE), commands


def complete(completion, program, *words):
    """Returns what bash offers for the last of the words."""
    listed = ' '.join(f"'{word}'" for word in (program, *words))
    line = f'COMP_WORDS=({listed}); COMP_CWORD={len(words)}; _{program.replace("-", "_")}'
    return run('bash', '-c', f'source {completion}; {line}; echo "${{COMPREPLY[@]}}"').split()


def main():
    page, completion, zsh, fish, program = map(Path, sys.argv[1:])
    of_zsh, of_fish = (path.read_text(encoding='utf-8') for path in (zsh, fish))
    for shell, path in (('zsh', zsh), ('fish', fish)):
        if shutil.which(shell):
            run(shell, '-n', path)
    text = page.read_text(encoding='utf-8').replace('\\-', '-')
    options, commands = said(run(program, '--help'))
    assert commands, 'no subcommand was found'
    assert set(complete(completion, program.name, '')) == {*commands, *options, '-h'}
    for command in commands:
        assert f'.SS {program.name} {command}\n' in text, command
        assert complete(completion, program.name, command[:-1]) == [
            word for word in commands if word.startswith(command[:-1])
        ]
        own, _ = said(run(program, command, '--help'))
        for option in own:
            assert f'\\fB{option}\\fR' in text, f'{command} {option}'
            assert option in complete(completion, program.name, command, option), (
                f'{command} {option}'
            )
            lines = [line for line in of_zsh.splitlines() if line.strip().startswith(f'{command})')]
            assert len(lines) == 1 and f"'{option}[" in lines[0], f'{command} {option}'
            seen = f"'__fish_seen_subcommand_from {command}'"
            assert re.search(f'{re.escape(seen)}.* -l {option[2:]} ', of_fish), (
                f'{command} {option}'
            )
    if program.name == 'fsccl-perf':
        assert complete(completion, program.name, 'step', '--layout', '') == [
            'per_param',
            'flat',
            'ragged',
        ]
        assert complete(completion, program.name, 'step', '--wire', 'f') == ['fp16', 'fp32']
        assert complete(completion, program.name, 'step', '--ranks', '') == []
    if shutil.which('groff'):
        # A word that is longer than a line is no fault, because lists of choices are so long.
        assert run('groff', '-man', '-Tutf8', '-ww', '-Wbreak', '-z', page) == ''


if __name__ == '__main__':
    main()
