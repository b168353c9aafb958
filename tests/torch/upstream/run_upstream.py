# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of a distributed backend on a CPU, which its wheel contains, over fsccl
(or --backend NAME).

The tests decide by a backend's name what it can do. fsccl must do all that any backend does on a
CPU, so each test runs that PyTorch runs for gloo or for MPI. The file `not_run.txt` beside this one
lists the accepted reasons for not running a test, and `failing.txt` the tests that fail, and why. A
skip for another reason is a failure, and so is a failure that is not listed. A test that is listed
but passes is reported.

usage: run_upstream.py [--ranks N] [--backend NAME] [TEST ...]
"""

import argparse
import importlib.util
import logging
import os
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
MODULE = 'torch.testing._internal.distributed.distributed_test'
TEST_LIMIT_S = 60


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('--backend', default='fsccl')
    parser.add_argument('tests', nargs='*')
    return parser.parse_args()


class KnownAs(str):
    """The backend's name. Tests that compare it with the name of a backend that they know find it
    to be equal."""

    def __new__(cls, name, known):
        self = super().__new__(cls, name)
        self.known = known
        return self

    def __eq__(self, other):
        return other in (str(self), self.known)

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


def load_suite(flavour, backend):
    """Returns the tests as PyTorch runs them for the backend `flavour`, to be run over another
    one."""
    os.environ['BACKEND'] = flavour
    source = importlib.util.find_spec(MODULE)
    spec = importlib.util.spec_from_file_location(f'distributed_test_of_{flavour}', source.origin)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.BACKEND = KnownAs(backend, flavour)

    class OverBackend(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(
                torch.multiprocessing.get_context('fork').Process
            )  # torch is loaded already

    return OverBackend


def reason_not_to_run(test):
    method = getattr(type(test), test._testMethodName)
    return (
        getattr(method, '__unittest_skip_why__', None)
        if getattr(method, '__unittest_skip__', False)
        else None
    )


def choose_tests(suites, wanted):
    """Returns, for each test, the form of the first suite that would run it."""
    loader, chosen = unittest.TestLoader(), []
    for name in loader.getTestCaseNames(suites[0]):
        if wanted and name not in wanted:
            continue
        forms = [suite(name) for suite in suites]
        chosen.append(next((form for form in forms if reason_not_to_run(form) is None), forms[0]))
    return unittest.TestSuite(chosen)


def read_list(path):
    """Returns {what: why} from the lines "what: why", in which # begins a comment."""
    lines = [line.split('#')[0].strip() for line in path.read_text(encoding='utf-8').splitlines()]
    return dict(re.split(r':\s+', line, maxsplit=1) for line in lines if line)


class Results(unittest.TextTestResult):
    """Compares results with the two lists, and keeps the cases for the XML file of
    tools/count_tests.py."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.accepted, self.failing = (
            read_list(FOLDER / 'not_run.txt'),
            read_list(FOLDER / 'failing.txt'),
        )
        self.cases, self.not_run, self.now_passing = [], {}, []

    def record(self, test, text=None):
        self.cases.append((test._testMethodName, text))
        if text is not None:
            self.stream.writeln(f'{test._testMethodName}: {text}')

    def addSuccess(self, test):
        super().addSuccess(test)
        if test._testMethodName in self.failing:
            self.now_passing.append(test._testMethodName)
        self.record(test)

    def broken(self, test, error):
        text = self._exc_info_to_string(error, test)
        if test._testMethodName not in self.failing:
            self.record(test, text)

    def addFailure(self, test, error):
        self.broken(test, error)

    def addError(self, test, error):
        self.broken(test, error)

    def addSkip(self, test, reason):
        accepted = next((pattern for pattern in self.accepted if re.search(pattern, reason)), None)
        if accepted is None:
            self.record(test, f'not run for a reason that is not in not_run.txt: {reason}')
        else:
            self.not_run.setdefault(accepted, []).append(test._testMethodName)

    def write_xml(self, path, suite):
        root = ElementTree.Element('testsuite', name=suite)
        for name, text in self.cases:
            case = ElementTree.SubElement(root, 'testcase', classname=suite, name=name)
            if text is not None:
                ElementTree.SubElement(case, 'failure', message=text.strip().splitlines()[-1])
        ElementTree.ElementTree(root).write(path)

    def summary(self):
        for pattern, names in self.not_run.items():
            yield f'not run: {len(names)} tests, {pattern} ({self.accepted[pattern]})'
        known = sorted(set(self.failing) - set(self.now_passing))
        yield f'known to fail: {", ".join(known) or "none"}'
        if self.now_passing:
            yield f'listed in failing.txt, but passing: {", ".join(self.now_passing)}'
        wrong = [name for name, text in self.cases if text is not None]
        yield f'failed: {", ".join(wrong) or "none"}'
        yield f'{len(self.cases) - len(wrong)} passed, {len(wrong)} failed'


def main():
    arguments = parse_arguments()
    suites = [load_suite(flavour, arguments.backend) for flavour in ('gloo', 'mpi')]
    logging.getLogger('torch.testing._internal.common_distributed').setLevel(logging.WARNING)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Results).run(
        choose_tests(suites, arguments.tests)
    )
    print('\n'.join(result.summary()))
    report = os.environ.get('GTEST_OUTPUT', '').removeprefix('xml:')
    if report:
        result.write_xml(report, f'upstream.{arguments.ranks}_ranks')
    sys.exit(1 if any(text is not None for _, text in result.cases) or not result.cases else 0)


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        for name in ('barrier', 'test_dir', 'init_dir'):
            (Path(folder) / name).mkdir()
        os.environ.update(
            TEMP_DIR=folder,
            WORLD_SIZE=str(parse_arguments().ranks),
            DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(TEST_LIMIT_S),
        )
        import torch

        torch.set_num_threads(1)
        main()
