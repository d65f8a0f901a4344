"""Mixers by name, and the reading of a backbone's ``mixers`` argument.

``mixers`` is data that a config can hold: ``dict(type='InLine')`` for every block, or a list with an
entry per stage, where an entry is a dict, or a list with a dict per block of that stage. What an entry
leaves open the family decides: ``dict(type='Softmax')`` is PVT's attention in a PVT, Swin's in a Swin.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from inline.errors import UserError
from inline.models.mixers.base import AttentionMixer

MixerConfig = dict[str, Any]
MixersConfig = MixerConfig | Sequence[MixerConfig | Sequence[MixerConfig]]

MIXERS: dict[str, type[AttentionMixer]] = {}


def register_mixer(name: str) -> Callable[[type[AttentionMixer]], type[AttentionMixer]]:
    """Class decorator: make a mixer known as ``dict(type=name)``."""

    def register(cls: type[AttentionMixer]) -> type[AttentionMixer]:
        if name in MIXERS:
            raise UserError(f'mixer {name!r} is registered already, as {MIXERS[name].__qualname__}')
        MIXERS[name] = cls
        return cls

    return register


def build_mixer(config: MixerConfig, dim: int, num_heads: int) -> AttentionMixer:
    """Build ``dict(type=name, **options)`` for tokens of ``dim`` channels."""
    options = dict(config)
    name = options.pop('type', None)
    if name not in MIXERS:
        raise UserError(f'unknown mixer type {name!r}: choose one of {", ".join(sorted(MIXERS))}')
    if dim % num_heads:
        raise UserError(f'width {dim} is not divisible by {num_heads} heads')
    known = _option_names(MIXERS[name])
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UserError(f'unknown option {unknown[0]!r} of mixer {name!r}: it takes {", ".join(known)}')
    return MIXERS[name](dim, num_heads, **options)


def _option_names(cls: type[AttentionMixer]) -> list[str]:
    """What a mixer takes beside dim and num_heads: its own options, then those that it hands on."""
    names: list[str] = []
    for base in cls.__mro__:
        if '__init__' not in vars(base):
            continue
        parameters = inspect.signature(vars(base)['__init__']).parameters.values()
        names += [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in names]
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return [name for name in names if name not in ('self', 'dim', 'num_heads')]


def default_mixers(inline_depths: Sequence[int], depths: Sequence[int]) -> list[list[MixerConfig]]:
    """The paper's mix: in each stage so many blocks with InLine, then softmax."""
    return [
        [{'type': 'InLine'}] * inline_depth + [{'type': 'Softmax'}] * (depth - inline_depth)
        for inline_depth, depth in zip(inline_depths, depths, strict=True)
    ]


def expand_mixers(mixers: MixersConfig, depths: Sequence[int]) -> list[list[MixerConfig]]:
    """One config per block, as a list per stage."""
    if isinstance(mixers, dict):
        mixers = [mixers] * len(depths)
    if len(mixers) != len(depths):
        raise UserError(
            f'mixers has {len(mixers)} entries: one dict, or one entry for each of {len(depths)} stages'
        )
    return [
        _expand_stage(entry, depth, stage)
        for stage, (entry, depth) in enumerate(zip(mixers, depths, strict=True))
    ]


def _expand_stage(entry: MixerConfig | Sequence[MixerConfig], depth: int, stage: int) -> list[MixerConfig]:
    if isinstance(entry, dict):
        return [entry] * depth
    if len(entry) != depth:
        raise UserError(
            f'mixers[{stage}] has {len(entry)} entries: one dict, or one for each of {depth} blocks'
        )
    return list(entry)
