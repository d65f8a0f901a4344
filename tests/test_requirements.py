"""The versions that setup.cfg promises are those that the code needs."""

import ast
import configparser
import sys

from tests.conftest import ROOT


def test_minimum_python_is_the_same_everywhere() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / 'setup.cfg')
    assert setup['options']['python_requires'] == '>=3.11'
    assert setup['mypy']['python_version'] == '3.11'
    assert 'target-version = "py311"' in (ROOT / 'pyproject.toml').read_text()
    assert sys.version_info >= (3, 11)


def test_minimum_torch_has_the_functions_that_are_used() -> None:
    """Functions of torch that are newer than 2.4, and the version that added each."""
    added = {
        'safe_globals': (2, 5),
        'fully_shard': (2, 6),
        'is_exporting': (2, 7),
        'optimization_hint': (2, 12),
    }
    names = set()
    for path in (ROOT / 'inline').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            names |= {alias.name for alias in getattr(node, 'names', []) if isinstance(alias, ast.alias)}
            names |= {node.attr} if isinstance(node, ast.Attribute) else set()
    setup = configparser.ConfigParser()
    setup.read(ROOT / 'setup.cfg')
    (minimum,) = [
        tuple(map(int, line.removeprefix('torch>=').split('.')))
        for line in setup['options']['install_requires'].split()
        if line.startswith('torch>=')
    ]
    assert minimum == max(version for name, version in added.items() if name in names)
