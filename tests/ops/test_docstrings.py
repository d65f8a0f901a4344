"""Every op documents its formula and its paper."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from inline import ops

# Every module with a naive reference.
MODULES = sorted({getattr(ops, name).__module__ for name in ops.__all__ if name.endswith('_naive')})


@pytest.mark.parametrize('module', MODULES)
def test_docstring_has_formula_and_paper(module: str) -> None:
    text = inspect.getdoc(importlib.import_module(module)) or ''
    assert re.search(r'Reference: .+arXiv \d{4}\.\d{5}', text, flags=re.DOTALL)
    assert re.search(r'^    .+ = ', text, flags=re.MULTILINE)


def test_all_ops_are_checked() -> None:
    files = [path.stem for path in Path(ops.__file__).parent.glob('*_attention.py')]
    assert sorted(f'inline.ops.{name}' for name in (*files, 'local_residual')) == MODULES
