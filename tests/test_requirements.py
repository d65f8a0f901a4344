"""The versions that setup.cfg promises are those that the code needs."""

import ast
import configparser
import sys
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from inline.utils.extras import EXTRAS
from tests.conftest import ROOT
from tests.test_dependencies import imports

# Imported if present: users install them for what they do with results and logs.
OPTIONAL = {'pandas', 'supervision', 'wandb'}
# Required by a package of the extra, and used only together with it.
INDIRECT = {'typing_extensions', 'yapf', 'markupsafe', 'starlette', 'google'}


def read_extras() -> dict[str, dict[str, Requirement]]:
    """Return the requirements of every extra by normalised name."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / 'setup.cfg')
    extras = {}
    for extra, lines in setup['options.extras_require'].items():
        needs = [Requirement(line) for line in lines.split('\n') if line]
        extras[extra] = {canonicalize_name(need.name): need for need in needs}
    return extras


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


def test_every_imported_package_is_required() -> None:
    modules = {
        module.split('.')[0] for path in (ROOT / 'inline').rglob('*.py') for _, module in imports(path)
    }
    foreign = modules - set(sys.stdlib_module_names) - {'inline', 'torch'} - OPTIONAL - INDIRECT
    assert {'numpy', 'mmengine', 'onnx', 'gradio'} <= foreign
    required = {name for needs in read_extras().values() for name in needs}
    distributions = packages_distributions()
    missing = {
        module
        for module in foreign
        if not {canonicalize_name(name) for name in distributions.get(module, [])} & required
    }
    assert missing == set()


def test_modules_of_the_extras_come_from_their_requirements() -> None:
    extras = read_extras()
    assert {*EXTRAS, 'dev'} == extras.keys()
    for name, extra in EXTRAS.items():
        packages = {canonicalize_name(package) for package in extra.packages.values()}
        assert packages <= extras[name].keys()


def test_pinned_versions_satisfy_the_extras() -> None:
    lines = [
        line
        for name in ('requirements.txt', 'constraints.txt')
        for line in (ROOT / name).read_text().split('\n')
    ]
    pins = [Requirement(line) for line in lines if '==' in line and not line.startswith('#')]
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix('==') for pin in pins}
    for needs in read_extras().values():
        for name, need in needs.items():
            if name != 'inline-attention':
                assert need.specifier.contains(versions[name]), f'{need}: {versions[name]} is pinned'
