"""What was found in a copy of a data set, in few lines however much is wrong."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

MAX_NAMES = 3


class Fault(NamedTuple):
    """Something wrong with one file: faults of the same kind are told in one line."""

    kind: str
    name: str
    detail: str = ''


@dataclass
class Part:
    """A folder or file of a data set.

    Attributes:
        name: Its path in the data set.
        source: Where it comes from; told when something is wrong with it.
        found: What is there, in a few words.
        problems: What is wrong, a line each.
    """

    name: str
    source: str
    found: str = 'missing'
    problems: list[str] = field(default_factory=list)

    def add(self, kind: str, names: Iterable[str]) -> None:
        """Note what the named things have in common, if there are any: how many, and the first few."""
        names = sorted(names)
        if names:
            more = ', …' if len(names) > MAX_NAMES else ''
            self.problems.append(f'{kind}: {len(names):,} ({", ".join(names[:MAX_NAMES])}{more})')

    def add_faults(self, faults: Iterable[Fault]) -> None:
        by_kind: dict[str, list[str]] = {}
        for kind, name, detail in faults:
            by_kind.setdefault(kind, []).append(f'{name}: {detail}' if detail else name)
        for kind, names in by_kind.items():
            self.add(kind, names)

    def expect(self, what: str, count: int, expected: int) -> None:
        if count != expected:
            self.problems.append(f'{what}: {count:,}, expected {expected:,}')


def format_report(title: str, root: Path, parts: list[Part]) -> str:
    """A line for each part, and below it what is wrong with it and where it comes from."""
    lines = [f'{title} in {root}']
    for part in parts:
        lines.append(f'  {"BAD" if part.problems else "ok "}  {part.name}: {part.found}')
        lines += [f'         {problem}' for problem in part.problems]
        if part.problems:
            lines.append(f'         from {part.source}')
    return '\n'.join(lines)
