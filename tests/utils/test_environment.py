"""Description of the environment of a measurement."""

import re
from pathlib import Path

import pytest

from inline.utils import environment


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one file in place of the project's source."""
    (tmp_path / 'inline').mkdir()
    (tmp_path / 'inline' / 'module.py').write_text('a = 1')
    monkeypatch.setattr(environment, '_ROOT', tmp_path)
    return tmp_path / 'inline' / 'module.py'


def fake_git(monkeypatch: pytest.MonkeyPatch, commit: str, status: str) -> None:
    monkeypatch.setattr(
        environment, '_git', lambda command, *_: {'rev-parse': commit, 'status': status}[command]
    )


def test_clean_checkout_is_described_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_git(monkeypatch, 'abc1234', '')
    assert environment.describe_commit() == 'abc1234'


@pytest.mark.parametrize(
    ('commit', 'status', 'text'), [('abc1234', ' M x.py', 'abc1234+'), ('', '', 'not a git checkout')]
)
def test_modified_code_is_described_by_a_source_digest(
    commit: str, status: str, text: str, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_git(monkeypatch, commit, status)
    first = environment.describe_commit()
    assert re.fullmatch(rf'{re.escape(text)} \(source [0-9a-f]{{12}}\)', first)
    assert environment.describe_commit() == first
    package.write_text('a = 2')
    assert environment.describe_commit() != first


def test_environment_has_commit_hardware_versions_and_date() -> None:
    described = environment.describe_environment(processes=3)
    assert list(described) == ['commit', 'hardware', 'versions', 'date']
    assert re.fullmatch(r'\d{4}-\d\d-\d\d', described['date'])
    assert 'torch ' in described['versions']


@pytest.mark.parametrize(
    ('has_gpu', 'expected'), [(True, '3 × a GPU'), (False, r'.+, \d+ cores, no GPU, 3 processes')]
)
def test_hardware_is_the_gpu_or_the_cpu(
    has_gpu: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: has_gpu)
    monkeypatch.setattr('torch.cuda.get_device_name', lambda _: 'a GPU')
    assert re.fullmatch(expected, environment.describe_environment(processes=3)['hardware'])
