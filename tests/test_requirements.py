"""What is installed is known to the version."""

import re
from importlib.metadata import metadata, version

import pytest
from packaging.specifiers import SpecifierSet

from tests.conftest import ROOT

LINES = [
    line.split('#')[0].strip()
    for line in (ROOT / 'requirements.txt').read_text().splitlines()
    if line.split('#')[0].strip()
]


@pytest.mark.parametrize('line', LINES)
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


def test_no_requirement_stands_twice() -> None:
    names = [re.sub(r'[-_.]+', '-', line.split('==')[0]).lower() for line in LINES]
    assert len(names) == len(set(names))
    assert 'torch' in names
