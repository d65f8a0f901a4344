"""Where the mathematics comes from stands beside it."""

import importlib
import inspect
import re

import pytest

from inline import ops

# Every module with a fast form and a naive twin.
MODULES = sorted({getattr(ops, name).__module__ for name in ops.__all__ if name.endswith('_naive')})


@pytest.mark.parametrize('module', MODULES)
def test_an_op_has_its_formula_and_its_paper_in_the_docstring(module: str) -> None:
    text = inspect.getdoc(importlib.import_module(module)) or ''
    assert re.search(r'Reference: .+arXiv \d{4}\.\d{5}', text, flags=re.DOTALL)
    assert re.search(r'^    .+ = ', text, flags=re.MULTILINE)


def test_all_attentions_are_looked_at() -> None:
    assert len(MODULES) == 10
