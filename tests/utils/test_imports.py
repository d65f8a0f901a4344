"""Imports of optional packages wait until the package is used."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inline.utils.imports import OnDemandFinder

PACKAGE = {
    '__init__.py': 'from shapes_package.solids import Cube\n',
    'solids.py': 'class Cube:\n    sides = 6\n    def __init__(self, edge): self.volume = edge ** 3\n',
}
MODULE = """
try:
    import shapes_package.solids as solids
    from shapes_package import Cube
    from shapes_package.solids import Cube as SameCube
    found = True
except ImportError:
    found = False
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package, and a module that imports it if it is installed."""
    (tmp_path / 'shapes_package').mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / 'shapes_package' / name).write_text(text)
    (tmp_path / 'uses_shapes.py').write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, 'meta_path', sys.meta_path.copy())
    yield
    for name in ('uses_shapes', 'shapes_package', 'shapes_package.solids'):
        sys.modules.pop(name, None)


def find_with(packages: dict[str, list[str]], absent: dict[str, str] | None = None) -> None:
    sys.meta_path.insert(0, OnDemandFinder(packages, absent or {}))


def test_package_is_imported_by_the_first_use() -> None:
    find_with({'uses_shapes': ['shapes_package.solids']})
    module = importlib.import_module('uses_shapes')
    assert module.found
    assert 'shapes_package' not in sys.modules
    assert module.Cube(2).volume == 8
    assert 'shapes_package.solids' in sys.modules
    assert module.SameCube.sides == 6
    assert module.solids.Cube(3).volume == 27
    with pytest.raises(AttributeError, match='corners'):
        _ = module.Cube.corners


def test_other_modules_get_the_package_itself() -> None:
    find_with({'another_module': ['shapes_package.solids']})
    module = importlib.import_module('uses_shapes')
    assert module.Cube is sys.modules['shapes_package'].Cube


def test_a_package_that_is_imported_already_is_not_replaced() -> None:
    package = importlib.import_module('shapes_package')
    find_with({'uses_shapes': ['shapes_package.solids']})
    assert importlib.import_module('uses_shapes').Cube is package.Cube


def test_a_package_that_is_not_installed_stays_missing(tmp_path: Path) -> None:
    (tmp_path / 'shapes_package').rename(tmp_path / 'moved')
    find_with({'uses_shapes': ['shapes_package.solids']})
    assert not importlib.import_module('uses_shapes').found


def test_an_absent_package_is_missing_for_one_module() -> None:
    find_with({}, {'uses_shapes': 'shapes_package'})
    assert not importlib.import_module('uses_shapes').found
    assert importlib.import_module('shapes_package').Cube.sides == 6
