"""Reading a backbone's ``arch`` argument: a name out of the family's size table, or a dict."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

from inline.arguments import check_choice, check_names, check_type, told
from inline.errors import UserError
from inline.models.limits import MAX_MLP_RATIO

A = TypeVar('A')


def resolve_arch(arch: str | Mapping[str, Any], table: Mapping[str, A], kind: type[A]) -> A:
    """The family's arch dataclass, from a name in ``table`` or from a dict with its fields."""
    if isinstance(arch, str):
        check_choice('unknown arch', arch, table, ', or give a dict')
        return table[arch]
    known = fields(kind)  # type: ignore[arg-type]  # A is a dataclass
    names = [field.name for field in known]
    missing = [field.name for field in known if field.default is MISSING and field.name not in arch]
    check_names(arch, names, 'key', 'arch')
    if missing:
        raise UserError(f'arch {told(dict(arch))} lacks {", ".join(missing)}: it takes {", ".join(names)}')
    hints = get_type_hints(kind)
    for name, value in arch.items():
        check_type(name, value, hints[name], 'arch')
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in arch.items()})


def check_same_length(**settings: tuple[Any, ...]) -> None:
    """Refuse per-stage settings of different lengths."""
    lengths = {name: len(value) for name, value in settings.items()}
    if len(set(lengths.values())) > 1:
        listed = ', '.join(f'{name} {length}' for name, length in lengths.items())
        raise UserError(f'the number of stages differs: {listed}')
    if 0 in lengths.values():
        raise UserError(f'{next(iter(settings))} (): there must be at least one stage')


def check_mlp_ratio(ratio: float, dim: int) -> None:
    if not 1 / dim <= ratio <= MAX_MLP_RATIO:
        raise UserError(
            f'mlp_ratio {ratio}: must be at most {MAX_MLP_RATIO}, and leave at least one of {dim} channels'
        )
