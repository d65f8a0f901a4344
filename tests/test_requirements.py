"""What is installed is known to the version."""

import re
from importlib.metadata import metadata, requires, version

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.conftest import ROOT


def lines_of(name: str) -> list[str]:
    lines = (line.split('#')[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [line for line in lines if line]


LINES, BROUGHT_ALONG = lines_of('requirements.txt'), lines_of('constraints.txt')


@pytest.mark.parametrize('line', sorted({*LINES, *BROUGHT_ALONG}))
def test_a_requirement_names_one_version_and_that_is_installed(line: str) -> None:
    pinned = re.fullmatch(r'([A-Za-z0-9_.-]+)==([0-9][0-9A-Za-z.+!]*)', line)
    assert pinned, f'{line!r} must be name==version: no range, no wildcard, no address, no option'
    # A build for one device adds its name: 2.13.0+cpu.
    assert version(pinned[1]).split('+')[0] == pinned[2]


def test_every_requirement_takes_the_oldest_python_that_the_set_up_takes() -> None:
    oldest = re.search(r'version_info < \((\d+), (\d+)\)', (ROOT / 'tools' / 'setup_env.sh').read_text())
    assert oldest
    python = '.'.join(oldest.groups())
    needs = {line: metadata(line.split('==')[0])['Requires-Python'] for line in LINES}
    assert not [line for line, need in needs.items() if need and python not in SpecifierSet(need)]


@pytest.mark.parametrize('lines', [LINES, BROUGHT_ALONG], ids=['requirements', 'constraints'])
def test_no_requirement_stands_twice(lines: list[str]) -> None:
    names = [canonicalize_name(line.split('==')[0]) for line in lines]
    assert len(names) == len(set(names))
    assert 'torch' in names


def test_all_that_the_requirements_bring_along_is_pinned_and_nothing_else() -> None:
    pinned = {canonicalize_name(line.split('==')[0]) for line in BROUGHT_ALONG}
    # A build of torch for GPUs names the versions of what it brings itself.
    brought = {name for name in installed_by(LINES) if not name.startswith(('cuda-', 'nvidia-', 'triton'))}
    # pip does not list what it installs with itself.
    assert brought - {'setuptools', 'wheel'} == pinned


def installed_by(lines: list[str]) -> set[str]:
    """Names of the distributions that pip installs for requirements, all the way down."""
    seen: set[tuple[str, str]] = set()
    todo = [(Requirement(line).name, '') for line in lines]
    while todo:
        name, extra = todo.pop()
        if (canonicalize_name(name), extra) in seen:
            continue
        seen.add((canonicalize_name(name), extra))
        for needed in map(Requirement, requires(name) or ()):
            if needed.marker is None or needed.marker.evaluate({'extra': extra}):
                todo += [(needed.name, one) for one in ('', *needed.extras)]
    return {name for name, _ in seen}
