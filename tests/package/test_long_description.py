"""The description of the distribution: the README, readable outside the repository."""

import re
import runpy
from collections.abc import Callable

from tests.conftest import ROOT

README = (ROOT / 'README.md').read_text()
long_description: Callable[[str], str] = runpy.run_path(str(ROOT / 'setup.py'))['long_description']


def test_no_link_or_picture_points_into_the_repository() -> None:
    text = long_description(README)
    targets = re.findall(r'\]\(([^)]*)\)', text)
    assert [target for target in targets if not target.startswith(('https://', '#'))] == []
    assert '![' not in text
    assert len(re.findall(r'\]\((?!https?:|#)', README)) > 20


def test_text_headings_and_code_are_kept() -> None:
    text = long_description(README)
    assert re.findall(r'^#+ .*$', text, re.MULTILINE) == re.findall(r'^#+ .*$', README, re.MULTILINE)
    assert re.findall(r'```.*?```', text, re.DOTALL) == re.findall(r'```.*?```', README, re.DOTALL)
    text = 'See [a *guide*](docs/a.md), [paper](https://x.org), [below](#b).\n\n![Fig](docs/i.png)\n\nEnd.\n'
    assert long_description(text) == 'See a *guide*, [paper](https://x.org), [below](#b).\n\nEnd.\n'
