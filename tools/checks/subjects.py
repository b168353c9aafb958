#!/usr/bin/env python3
"""The subject of a commit is imperative, begins with a capital letter, has at most 72 characters and
no full stop; a blank line follows it.

usage: subjects.py ROOT           checks the newest commit of the tree
       subjects.py --message FILE checks a message, as a commit-msg hook
       subjects.py --self-test
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from ask_git import ask_git

LONGEST = 72
# First words that end as a participle or a third person does, but are imperatives.
IMPERATIVES = re.compile(
    r'^(?:.*(?:ss|us)|(?:Em|Un)?bed|Need|Feed|Seed|Speed|Exceed|Proceed|Shed|Bring|String|Ping|Alias|Canvas|Bias)$'
)


def problems_of(message):
    lines = [line for line in message.split('\n') if not line.startswith('#')]
    subject = lines[0] if lines else ''
    if re.match(r'([Mm]erge|Revert|fixup!|squash!) ?', subject):
        return []
    problems = []
    first = re.match(r'\w*', subject)[0]
    if len(subject) > LONGEST:
        problems.append(f'"{subject[:40]}...": {len(subject)} characters, at most {LONGEST}')
    if not re.match(r'[A-Z]', subject):
        problems.append(f'"{subject}": begin with a capital letter')
    if subject.endswith('.'):
        problems.append(f'"{subject}": no full stop')
    if re.search(r'(?:ed|ing|s)$', first) and not IMPERATIVES.match(first):
        problems.append(f'"{subject}": say what the commit does to the tree: "Add", not "Added"')
    if len(lines) > 1 and lines[1].strip():
        problems.append(f'"{subject}": leave a blank line before the body')
    return problems


def newest(root):
    if not (root / '.git').exists():
        return []
    log = ask_git(root, 'log', '-1', '--no-merges', '--format=%B')
    return problems_of(log.decode().strip())


SAMPLES = [
    ('Let no rank leave an agreement before all have its errors\n\nWhy.', False),
    ('Pass the stream to the copy', False),
    ('Embed the chart library', False),
    ('Merge branch x into y, whatever its length, of more than seventy-two characters', False),
    (
        "Small calls: where this rank's own blocks of a pool lie is not looked up for itself, as",
        True,
    ),
    ('fix typo', True),
    ('Added a test', True),
    ('Fixes the wait', True),
    ('Add a test.', True),
    ('Add a test\nand a fix', True),
]


def main():
    arguments = sys.argv[1:]
    if arguments == ['--self-test']:
        wrong = [said for said, refused in SAMPLES if bool(problems_of(said)) != refused]
        for said in wrong:
            print(f'"{said}" was judged wrongly')
        print(f'{len(SAMPLES)} samples: {len(wrong)} problems')
        sys.exit(bool(wrong))
    if len(arguments) == 2 and arguments[0] == '--message':
        problems = problems_of(pathlib.Path(arguments[1]).read_text(encoding='utf-8'))
    elif len(arguments) == 1:
        problems = newest(pathlib.Path(arguments[0]).resolve())
    else:
        sys.exit(__doc__)
    for problem in problems:
        print(problem)
    sys.exit(bool(problems))


if __name__ == '__main__':
    main()
