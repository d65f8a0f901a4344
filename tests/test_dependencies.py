"""Packages of inline/ import only packages to their left; see the architecture in CONTRIBUTING.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Packages in one group may import each other, unless they are in INDEPENDENT.
ORDER = (
    ('utils',),
    ('ops',),
    ('models',),
    ('checkpoints',),
    ('hub', 'openmmlab'),
    ('engine', 'datasets'),
    ('apis', 'analysis', 'benchmark'),
    ('reproduce',),
    ('commands',),
)
INDEPENDENT = ('hub', 'openmmlab')
WITHOUT_OPENMMLAB = ('utils', 'ops', 'models', 'checkpoints', 'hub')
OPENMMLAB = ('mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg')
LEVELS = {package: level for level, group in enumerate(ORDER) for package in group}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and module of every import in a file, also of those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == 'inline':
            yield from ((node.lineno, f'inline.{alias.name}') for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{path}: relative import'
            yield node.lineno, node.module or ''


def may_import(package: str, other: str) -> bool:
    if package == other or other not in LEVELS:
        return True
    if LEVELS[package] == LEVELS[other]:
        return package not in INDEPENDENT
    return LEVELS[other] < LEVELS[package]


def test_every_package_is_in_the_order() -> None:
    packages = {path.parent.name for path in (ROOT / 'inline').glob('*/__init__.py')}
    assert packages == LEVELS.keys()
    modules = {path.name for path in (ROOT / 'inline').glob('*.py')}
    assert modules == {'__init__.py', 'registry.py'}


@pytest.mark.parametrize('package', LEVELS)
def test_imports_point_to_the_left(package: str) -> None:
    wrong = [
        f'{path.relative_to(ROOT)}:{line}: {module}'
        for path in sorted((ROOT / 'inline' / package).rglob('*.py'))
        for line, module in imports(path)
        if module.startswith('inline.') and not may_import(package, module.split('.')[1])
    ]
    assert wrong == []


@pytest.mark.parametrize('package', WITHOUT_OPENMMLAB)
def test_openmmlab_is_not_imported(package: str) -> None:
    """Neither directly nor through ``inline.registry``, which needs MMEngine."""
    wrong = [
        f'{path.relative_to(ROOT)}:{line}: {module}'
        for path in sorted((ROOT / 'inline' / package).rglob('*.py'))
        for line, module in imports(path)
        if module.split('.')[0] in OPENMMLAB or module == 'inline.registry'
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ('package', 'other', 'allowed'),
    [
        ('models', 'ops', True),
        ('ops', 'models', False),
        ('engine', 'datasets', True),
        ('datasets', 'engine', True),
        ('hub', 'openmmlab', False),
        ('openmmlab', 'hub', False),
        ('engine', 'apis', False),
        ('reproduce', 'apis', True),
        ('reproduce', 'commands', False),
    ],
)
def test_the_rule_itself(package: str, other: str, allowed: bool) -> None:
    assert may_import(package, other) == allowed


def test_contributing_names_the_files_of_a_run() -> None:
    """At most eight files decide what a training runs; the section names all others that launch.py calls."""
    section = (ROOT / 'CONTRIBUTING.md').read_text().split('\n## How a run works\n')[1].split('\n## ')[0]
    steps = re.findall(r'^\d\. \[`(.+?)`\]\((.+?)\)', section, re.MULTILINE)
    assert 4 <= len(steps) <= 8
    assert all(name == target and (ROOT / target).is_file() for name, target in steps)
    modules = {module for _, module in imports(ROOT / 'inline' / 'engine' / 'launch.py')}
    of_the_run = [module for module in modules if module.startswith(('inline.engine.', 'inline.datasets.'))]
    assert len(of_the_run) > 8
    for module in of_the_run:
        path = module.replace('.', '/')
        folders = (f'`{path}/`', f'`{path.rpartition("/")[0]}/`')
        assert f'{Path(path).name}.py' in section or any(folder in section for folder in folders), module
