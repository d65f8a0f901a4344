"""The failure table quotes messages: those of ours are still in the code."""

import re

import pytest

from tests.conftest import ROOT

# What libraries, the shell and the system say.
OF_OTHERS = (
    'operator torchvision::nms does not exist',
    'No module named',
    'bus error',
    'is killed',
    'Address already in use',
)
ROWS = [line for line in (ROOT / 'docs' / 'failures.md').read_text().splitlines() if line.startswith('| `')]
QUOTED = [code for row in ROWS for code in re.findall(r'`([^`]+)`', row.split(' | ')[0])]
# What stands for a value in a quoted message.
VALUE = re.compile(r"…|'[^']*'|\d+(?:×\d+)?|\b[A-Z]+\b")


@pytest.fixture(scope='module')
def sources() -> str:
    files = [*(ROOT / 'inline').rglob('*.py'), *(ROOT / 'tools').glob('*.*')]
    text = '\n'.join(file.read_text() for file in files)
    # A string over several lines is one message.
    return re.sub(r"'\s*\n\s*f?'", '', text)


@pytest.mark.parametrize('quoted', QUOTED)
def test_a_quoted_message_is_one_of_ours(quoted: str, sources: str) -> None:
    if any(words in quoted for words in OF_OTHERS):
        return
    part = max((part.strip(' :,') for part in VALUE.split(quoted)), key=len)
    assert len(part) > 5
    assert part in sources, f'no message of ours has {part!r}: change docs/failures.md'
