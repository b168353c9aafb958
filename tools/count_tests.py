#!/usr/bin/env python3
"""Counts the tests that really ran, from the records of tools/test_wrapper.sh, and prints the
closing line of tools/test.

A GoogleTest program and a file of pytest count with each of their cases, any other test as one. A
program that ends badly although its cases passed (a leak found at its end, a signal) counts as one
more failure. Exit status 77 of another program means skipped.

usage: count_tests.py FOLDER STATUS (of the test runner) | --self-test
"""

import pathlib
import sys
import tempfile
import xml.etree.ElementTree

SKIP_STATUS = 77


def read_cases(path):
    """Returns (number of passed cases, names of failed ones, names of skipped ones with the reason)
    of a result file of GoogleTest or pytest."""
    passed, failed, skipped = 0, [], []
    for case in xml.etree.ElementTree.parse(path).getroot().iter('testcase'):
        name = f'{case.get("classname")}.{case.get("name")}'
        if case.get('status') == 'notrun' or case.get('result') == 'suppressed':
            continue
        reason = case.find('skipped')
        if case.find('failure') is not None or case.find('error') is not None:
            failed.append(name)
        elif reason is not None:
            text = reason.get('message') or ''
            skipped.append(f'{name} ({" ".join(text.split()) or "no reason given"})')
        else:
            passed += 1
    return passed, failed, skipped


def program_name(command):
    words = [pathlib.Path(word).name for word in command.splitlines()]
    return ' '.join(words[1:4] if words and words[0].startswith('python') else words[:3])


def count(folder, runner_status):
    passed, failed, skipped = 0, [], []
    for record in sorted(folder.glob('*.command')):
        name = program_name(record.read_text(encoding='utf-8', errors='replace'))
        status_path, cases_path = record.with_suffix('.status'), record.with_suffix('.xml')
        status = int(status_path.read_text()) if status_path.exists() else None
        broken = False
        if cases_path.exists():
            try:
                more_passed, more_failed, more_skipped = read_cases(cases_path)
            except xml.etree.ElementTree.ParseError:
                more_passed, more_failed, more_skipped, broken = 0, [], [], True
            passed += more_passed
            failed += more_failed
            skipped += more_skipped
            if broken or (status != 0 and not more_failed):
                failed.append(f'{name} (exit status {status} after its cases)')
        elif status == 0:
            passed += 1
        elif status == SKIP_STATUS:
            reason = record.with_suffix('.reason')
            skipped.append(
                f'{name} ({reason.read_text(encoding="utf-8")})' if reason.exists() else name
            )
        else:
            failed.append(
                f'{name} (ended by force: too slow?)'
                if status is None
                else f'{name} (exit status {status})'
            )
    if runner_status != 0 and not failed:
        failed.append(f'the test runner (exit status {runner_status})')
    if passed + len(failed) + len(skipped) == 0:
        failed.append('nothing was run')
    return passed, failed, skipped


def closing_line(passed, failed, skipped):
    line = f'{passed} passed, {len(failed)} failed'
    return line + (f', {len(skipped)} skipped: {"; ".join(skipped)}' if skipped else '')


CASES = """<testsuites><testsuite name="S">
<testcase name="a" status="run" result="completed" classname="S"/>
<testcase name="b" status="notrun" result="suppressed" classname="S"/>
<testcase name="c" status="run" result="skipped" classname="S">
<skipped message="x.cpp:1&#x0A;needs a GPU"/></testcase>%s
</testsuite></testsuites>"""
FAILED_CASE = '<testcase name="d" status="run" result="completed" classname="S"><failure message="no"/></testcase>'
PYTEST_CASES = """<testsuites name="pytest tests"><testsuite name="pytest">
<testcase classname="t" name="a" time="0.1"/>
<testcase classname="t" name="b"><error message="failed on setup">E</error></testcase>
<testcase classname="t" name="c"><skipped type="pytest.skip" message="no GPU">t.py:1</skipped></testcase>
</testsuite></testsuites>"""
SELF_TESTS = [
    ({}, 0, '0 passed, 1 failed'),
    ({'1.command': 'x', '1.status': '0'}, 0, '1 passed, 0 failed'),
    (
        {'1.command': 'x', '1.status': '0', '1.xml': CASES % ''},
        0,
        '1 passed, 0 failed, 1 skipped: S.c (x.cpp:1 needs a GPU)',
    ),
    (
        {'1.command': 'x', '1.status': '1', '1.xml': CASES % FAILED_CASE},
        1,
        '1 passed, 1 failed, 1 skipped: S.c (x.cpp:1 needs a GPU)',
    ),
    (
        {'1.command': 'x', '1.status': '1', '1.xml': PYTEST_CASES},
        1,
        '1 passed, 1 failed, 1 skipped: t.c (no GPU)',
    ),
    (
        {'1.command': 'x', '1.status': '23', '1.xml': CASES % ''},
        1,
        '1 passed, 1 failed, 1 skipped: S.c (x.cpp:1 needs a GPU)',
    ),
    ({'1.command': 'x', '1.xml': '<testsuites'}, 1, '0 passed, 1 failed'),
    ({'1.command': 'x'}, 1, '0 passed, 1 failed'),
    (
        {'1.command': 'x', '1.status': '0', '2.command': '/a b/y\nz', '2.status': '77'},
        0,
        '1 passed, 0 failed, 1 skipped: y z',
    ),
    (
        {'1.command': 'x', '1.status': '77', '1.reason': 'no GPU'},
        0,
        '0 passed, 0 failed, 1 skipped: x (no GPU)',
    ),
    ({'1.command': 'x', '1.status': '0'}, 1, '1 passed, 1 failed'),
]


def self_test():
    wrong = 0
    for files, runner_status, expected in SELF_TESTS:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                (pathlib.Path(folder) / name).write_text(text, encoding='utf-8')
            line = closing_line(*count(pathlib.Path(folder), runner_status))
        if line != expected:
            wrong += 1
            print(f'expected "{expected}", got "{line}"')
    return wrong


def main():
    if sys.argv[1:] == ['--self-test']:
        sys.exit(1 if self_test() else 0)
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    passed, failed, skipped = count(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
    for name in failed:
        print(f'failed: {name}')
    print(closing_line(passed, failed, skipped))
    sys.exit(1 if failed else 0)


if __name__ == '__main__':
    main()
