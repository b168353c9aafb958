# SPDX-License-Identifier: Apache-2.0
"""Tests that `import fsccl_torch` is enough for every name of fsccl_torch in the documents."""

import re
import types
from importlib.util import find_spec
from pathlib import Path

import fsccl_torch
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / 'README.md', *ROOT.glob('docs/*.md'), *ROOT.glob('bindings/*/README.md')]
NAMES = sorted(
    {
        tuple(name.split('.')[1:])
        for page in PAGES
        for name in re.findall(r'\bfsccl_torch(?:\.[A-Za-z]\w*)+', page.read_text(encoding='utf-8'))
    }
)
NEEDS = {'torchft': 'torchft', 'xla': 'torch_xla'}  # modules, and the packages that they need


@pytest.mark.parametrize('path', NAMES, ids='.'.join)
def test_a_documented_name_needs_no_other_import(path, monkeypatch):
    if not find_spec(NEEDS.get(path[0], 'torch')):  # then its source must have the name
        assert path[0] in fsccl_torch._MODULES
        source = Path(fsccl_torch.__file__).with_name(f'{path[0]}.py').read_text(encoding='utf-8')
        for name in path[1:]:
            assert re.search(rf'^\s*(class|def) {name}\b', source, re.MULTILINE), name
        return
    # Modules that other tests imported do not count.
    for name, value in list(vars(fsccl_torch).items()):
        if isinstance(value, types.ModuleType) and value.__name__.startswith('fsccl_torch.'):
            monkeypatch.delattr(fsccl_torch, name)
    found = fsccl_torch
    for name in path:
        found = getattr(found, name)


def test_the_documents_name_some():
    assert ('fsdp2', 'enable') in NAMES and ('publish',) in NAMES
