"""Mixer registry, and the ``mixers`` argument of the backbones.

``mixers`` is plain config data: ``dict(type='InLine')`` for every block, or a list with one entry per stage,
where an entry is a dict or a list with one dict per block. The family fills in options that an entry does not
set: ``dict(type='Softmax')`` is PVT's attention in a PVT and Swin's in a Swin.
"""

from collections.abc import Callable, Sequence
from typing import Any

from inline.models.mixers.base import AttentionMixer
from inline.utils.arguments import check_choice, check_names, check_type, checked, parameters_of
from inline.utils.errors import UserError

MixerConfig = dict[str, Any]
MixersConfig = MixerConfig | Sequence[MixerConfig | Sequence[MixerConfig]]

MIXERS: dict[str, type[AttentionMixer]] = {}


def register_mixer(name: str) -> Callable[[type[AttentionMixer]], type[AttentionMixer]]:
    """Return a class decorator that registers a mixer as ``dict(type=name)``."""

    def register(cls: type[AttentionMixer]) -> type[AttentionMixer]:
        if name in MIXERS:
            raise UserError(f'mixer {name!r} is already registered, as {MIXERS[name].__qualname__}')
        if '__init__' in vars(cls):
            cls.__init__ = checked(cls.__init__)  # type: ignore[method-assign]
        MIXERS[name] = cls
        return cls

    return register


def build_mixer(config: MixerConfig, dim: int, num_heads: int) -> AttentionMixer:
    """Build the mixer ``dict(type=name, **options)`` for tokens of ``dim`` channels."""
    check_mixer(config)
    options = {name: value for name, value in config.items() if name != 'type'}
    return MIXERS[config['type']](dim, num_heads, **options)


def check_mixer(config: MixerConfig) -> None:
    """Raise if a mixer config has an unknown type or option, or an option value of the wrong type."""
    check_choice('unknown mixer type', config.get('type'), sorted(MIXERS))
    owner = f'mixer {config["type"]!r}'
    known = parameters_of(MIXERS[config['type']])
    options = {name: annotation for name, annotation in known.items() if name not in ('dim', 'num_heads')}
    given = {name: value for name, value in config.items() if name != 'type'}
    check_names(given, options, 'option', owner)
    for name, value in given.items():
        check_type(name, value, options[name], owner)


def default_mixers(inline_depths: Sequence[int], depths: Sequence[int]) -> list[list[MixerConfig]]:
    """Return the paper's mixers: in each stage ``inline_depths`` blocks with InLine, then softmax."""
    return [
        [{'type': 'InLine'}] * inline_depth + [{'type': 'Softmax'}] * (depth - inline_depth)
        for inline_depth, depth in zip(inline_depths, depths, strict=True)
    ]


def expand_mixers(mixers: MixersConfig, depths: Sequence[int]) -> list[list[MixerConfig]]:
    """Expand ``mixers`` to one config per block, as a list per stage."""
    if isinstance(mixers, dict):
        _check_entry('mixers', mixers)
        mixers = [mixers] * len(depths)
    if len(mixers) != len(depths):
        raise UserError(
            f'mixers has {len(mixers)} entries: must be one dict, or one entry per stage ({len(depths)})'
        )
    return [
        _expand_stage(entry, depth, stage)
        for stage, (entry, depth) in enumerate(zip(mixers, depths, strict=True))
    ]


def _expand_stage(entry: MixerConfig | Sequence[MixerConfig], depth: int, stage: int) -> list[MixerConfig]:
    path = f'mixers[{stage}]'
    if isinstance(entry, dict):
        _check_entry(path, entry)
        return [entry] * depth
    if len(entry) != depth:
        raise UserError(
            f'{path} has {len(entry)} entries: must be one dict, or one entry per block ({depth})'
        )
    for block, config in enumerate(entry):
        _check_entry(f'{path}[{block}]', config)
    return list(entry)


def _check_entry(path: str, config: MixerConfig) -> None:
    """Check an entry before the family adds its defaults; an error names the path of the entry."""
    try:
        check_mixer(config)
    except UserError as error:
        raise UserError(f'{path}: {error}') from error
