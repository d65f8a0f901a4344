"""Parse commands and code blocks out of the documentation."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

PAGES = [
    ROOT / 'README.md',
    ROOT / 'CONTRIBUTING.md',
    *sorted((ROOT / 'docs').glob('*.md')),
    *sorted((ROOT / 'docs' / 'api').glob('*.md')),
]
NEEDS = ('data', 'gpus', 'network', 'slurm')
FENCE = re.compile(r'^```(?P<language>\w+)$')
MARK = re.compile(r'^<!-- needs: (?P<what>.+) -->$')
# `[flags of tools/train.py]` is optional. `[ $? = 75 ]` is shell syntax.
OPTIONAL = re.compile(r'\[(?! )[^\]]*\]')
SEPARATORS = {';', '&&', '||', '|', '>', '&'}
KEYWORDS = {'until', 'while', 'do', 'done', 'if', 'then', 'fi'}
# Shell built-ins, which need no test.
BUILTINS = {'[', 'break', 'cd', 'export', 'source'}
ASSIGNMENT = re.compile(r'^[A-Z_]+=')


@dataclass(frozen=True)
class Block:
    """A fenced code block with its first line and the requirements in the comment above it."""

    page: str
    line: int
    language: str
    needs: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Command:
    """One simple command of a block, without comments and leading assignments."""

    page: str
    line: int
    needs: tuple[str, ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f'{self.page}:{self.line}: {self.text}'

    @property
    def text(self) -> str:
        return ' '.join(self.words)


def read_blocks(page: Path) -> list[Block]:
    name = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
    blocks, language, begun, needs = [], '', 0, ()
    lines = page.read_text().splitlines()
    for i, line in enumerate(lines):
        if language and line == '```':
            blocks.append(Block(name, begun + 1, language, needs, '\n'.join(lines[begun:i])))
            language = ''
        elif not language and (fence := FENCE.match(line)):
            language, begun, needs = fence['language'], i + 1, _read_mark(lines[:i])
    return blocks


def _read_mark(above: list[str]) -> tuple[str, ...]:
    """Return the requirements if the last non-empty line is a marker."""
    last = next((line for line in reversed(above) if line.strip()), '')
    mark = MARK.match(last)
    return tuple(mark['what'].replace(',', ' ').split()) if mark else ()


def read_commands(page: Path) -> list[Command]:
    """Return every simple command in the ```bash blocks of a page."""
    return [
        Command(block.page, line, block.needs, words)
        for block in read_blocks(page)
        if block.language == 'bash'
        for line, text in _join_lines(block)
        for words in split_commands(text)
    ]


def _join_lines(block: Block) -> list[tuple[int, str]]:
    """Join lines that end with a backslash with the following line."""
    joined: list[tuple[int, str]] = []
    continued = False
    for number, line in enumerate(block.text.splitlines(), block.line):
        if continued:
            joined[-1] = (joined[-1][0], joined[-1][1] + line.removesuffix('\\'))
        else:
            joined.append((number, line.removesuffix('\\')))
        continued = line.endswith('\\')
    return joined


def split_commands(text: str) -> list[tuple[str, ...]]:
    """Split a line into simple commands, without keywords, leading assignments and built-ins."""
    reader = shlex.shlex(OPTIONAL.sub('', text), posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in reader:
        if word in SEPARATORS:
            commands.append([])
        elif commands[-1] or not (word in KEYWORDS or ASSIGNMENT.match(word)):
            commands[-1].append(word)
    return [tuple(words) for words in commands if words and words[0] not in BUILTINS]
