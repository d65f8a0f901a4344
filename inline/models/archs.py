"""Reading a backbone's ``arch`` argument: a name out of the family's size table, or a dict."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from inline.errors import UserError

A = TypeVar('A')


def resolve_arch(arch: str | Mapping[str, Any], table: Mapping[str, A], kind: type[A]) -> A:
    """The family's arch dataclass, from a name in ``table`` or from a dict with all of its fields."""
    if isinstance(arch, str):
        if arch not in table:
            raise UserError(f'unknown arch {arch!r}: choose one of {", ".join(table)}, or give a dict')
        return table[arch]
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # A is a dataclass
    unknown, missing = sorted(set(arch) - set(names)), [name for name in names if name not in arch]
    if unknown:
        raise UserError(f'unknown key {unknown[0]!r} in arch: it takes {", ".join(names)}')
    if missing:
        raise UserError(f'arch lacks {", ".join(missing)}: it needs {", ".join(names)}')
    return kind(**{name: tuple(value) for name, value in arch.items()})


def check_same_length(**settings: tuple[Any, ...]) -> None:
    """Refuse per-stage settings of different lengths."""
    lengths = {name: len(value) for name, value in settings.items()}
    if len(set(lengths.values())) > 1:
        told = ', '.join(f'{name} {length}' for name, length in lengths.items())
        raise UserError(f'the number of stages differs: {told}')
