"""Reading a backbone's ``arch`` argument: a name out of the family's size table, or a dict."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from inline.errors import UserError

A = TypeVar('A')


def resolve_arch(arch: str | Mapping[str, Any], table: Mapping[str, A], kind: type[A]) -> A:
    """The family's arch dataclass, from a name in ``table`` or from a dict with its fields."""
    if isinstance(arch, str):
        if arch not in table:
            raise UserError(f'unknown arch {arch!r}: choose one of {", ".join(table)}, or give a dict')
        return table[arch]
    known = fields(kind)  # type: ignore[arg-type]  # A is a dataclass
    names = [field.name for field in known]
    missing = [field.name for field in known if field.default is MISSING and field.name not in arch]
    unknown = sorted(set(arch) - set(names))
    if unknown:
        raise UserError(f'unknown key {unknown[0]!r} in arch: it takes {", ".join(names)}')
    if missing:
        raise UserError(f'arch lacks {", ".join(missing)}: it needs {", ".join(names)}')
    return kind(
        **{name: value if isinstance(value, int | float) else tuple(value) for name, value in arch.items()}
    )


def check_same_length(**settings: tuple[Any, ...]) -> None:
    """Refuse per-stage settings of different lengths."""
    lengths = {name: len(value) for name, value in settings.items()}
    if len(set(lengths.values())) > 1:
        told = ', '.join(f'{name} {length}' for name, length in lengths.items())
        raise UserError(f'the number of stages differs: {told}')
