"""Messages quoted in the troubleshooting page exist in the code, each within one message."""

import ast
import re
from collections.abc import Sequence

import pytest

from tests.conftest import ROOT

PAGE = ROOT / 'docs' / 'troubleshooting.md'
# Messages of libraries, the shell and the operating system.
FOREIGN = (
    'operator torchvision::nms does not exist',
    'No module named',
    'bus error',
    'is killed',
    'Address already in use',
)
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith('| `')]
QUOTED = [code for row in ROWS for code in re.findall(r'`([^`]+)`', row.split(' | ')[0])]
OWN = [quote for quote in QUOTED if not any(words in quote for words in FOREIGN)]
# Values in a quoted message: an ellipsis, a quoted name, a number, a placeholder in capitals.
VALUE = re.compile(r"…|'[^']*'|\d+(?:×\d+)?|\b[A-Z]+\b")
# Stands for a value in the messages collected from the code.
HOLE = '\0'


class Messages(ast.NodeVisitor):
    """Collects the strings of a module that a user can see: no docstrings, comments or help texts."""

    def __init__(self, source: str) -> None:
        self.found: list[str] = []
        self.visit(ast.parse(source))

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in ('help', 'description'):
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pieces = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)
            pieces.append(part.value if isinstance(part, ast.Constant) else HOLE)
        self.found.append(''.join(map(str, pieces)))

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.found.append(node.value)


def shell_messages(source: str) -> list[str]:
    lines = [line for line in source.splitlines() if not line.lstrip().startswith('#')]
    return [re.sub(r'\$\{[^}]*\}|\$\w+', HOLE, line) for line in lines]


def is_quoted(quote: str, messages: Sequence[str]) -> bool:
    """Whether a message has the words of a quote in their order, with values between them.

    A message may insert words of another message as a value, such as the kind of a path or a hint, but no
    more than half of the quote.
    """
    words = [part.strip(' :,') for part in VALUE.split(quote) if part.strip(' :,')]
    known = [word for word in words if any(word in message for message in messages)]
    if known != words:
        return False
    for message in messages:
        own = [word for word in words if word in message]
        inserted = [word for word in words if word not in message]
        enough = HOLE in message and len(''.join(own)) >= len(''.join(inserted))
        in_order = re.search('.*'.join(map(re.escape, own)), message, re.DOTALL) is not None
        if own and in_order and (enough or not inserted):
            return True
    return False


@pytest.fixture(scope='module')
def messages() -> list[str]:
    modules = [*(ROOT / 'inline').rglob('*.py'), *(ROOT / 'tools').glob('*.py')]
    found = [message for path in modules for message in Messages(path.read_text()).found]
    scripts = (ROOT / 'tools').glob('*.sh')
    return [*found, *(message for path in scripts for message in shell_messages(path.read_text()))]


def test_the_page_quotes_messages() -> None:
    assert len(OWN) > 30


@pytest.mark.parametrize('quote', OWN)
def test_a_quoted_message_is_in_the_code(quote: str, messages: list[str]) -> None:
    assert is_quoted(quote, messages), f'no message in inline/ or tools/ reads {quote!r}: change {PAGE.name}'


@pytest.mark.parametrize('words', FOREIGN)
def test_every_exception_is_needed(words: str, messages: list[str]) -> None:
    assert any(words in quote for quote in QUOTED)
    assert not any(words in message for message in messages)


@pytest.mark.parametrize(
    ('quote', 'found'),
    [
        ("'a.pth' has 3 tensors", True),
        ('model file … has 3 tensors', True),
        ("model folder 'a' has 3 tensors", False),
        ("has 4 tensors, config 'b' has", True),
        ("tensors, folder 'b' has", False),
        ("config 'b' has 4 tensors", False),
        ('a docstring of the function', False),
        ('a comment in the function', False),
        ('a help text of a flag', False),
    ],
)
def test_a_quote_must_be_words_of_one_message(quote: str, found: bool) -> None:
    source = (
        'def check(path, config):\n'
        '    """This is a docstring of the function."""\n'
        '    # This is a comment in the function.\n'
        "    add_argument('--x', help='this is a help text of a flag')\n"
        "    kind = 'model file'\n"
        "    raise UserError(f'{kind} {path!r} has {n} tensors, '\n"
        "                    f'config {config!r} has {m}')\n"
    )
    assert is_quoted(quote, Messages(source).found) is found


def test_variables_of_a_script_are_values() -> None:
    (message,) = shell_messages('# no interpreter in a comment\necho "no interpreter \'$PYTHON\'"')
    assert is_quoted("no interpreter 'python3'", [message])
    assert not is_quoted('no compiler', [message])
