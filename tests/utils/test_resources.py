"""Where the files of the project are in a clone. tests/package installs a wheel."""

import pytest

from inline.utils import resources
from tests.conftest import ROOT


def test_a_clone_is_its_own_root() -> None:
    assert resources.IS_CLONE
    assert ROOT == resources.ROOT
    assert (resources.PAPER_RESULTS / 'weights.csv').is_file()
    assert ROOT / 'results' / 'measured' == resources.MEASURED_RESULTS


def test_messages_name_the_command_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resources.format_tool('get_flops', 'flops') == 'python tools/get_flops.py'
    monkeypatch.setattr(resources, 'IS_CLONE', False)
    assert resources.format_tool('get_flops', 'flops') == 'inline flops'
