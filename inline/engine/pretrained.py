"""Weights to start from: what fits is loaded and the rest told by name; another architecture is refused."""

import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn

from inline.engine.safe_loading import load
from inline.errors import UserError
from inline.models.layers import PositionEmbedding, RelativePositionBias

# A block belongs to the same architecture if at least this share of its numbers finds its place. Another
# attention leaves the projections and the MLP in theirs, which is more than half of a block.
_SAME_BLOCK = 0.5
_BLOCK = re.compile(r'(?:.*\.)?blocks\.\d+(?=\.)')
_SHOWN = 3


@dataclass(frozen=True)
class Fit:
    """How the weights of a file go with a model, by the names of tensors."""

    matched: tuple[str, ...]
    missing: tuple[str, ...]
    misshapen: tuple[str, ...]
    unused: tuple[str, ...]

    def describe(self) -> str:
        own = len(self.matched) + len(self.missing) + len(self.misshapen)
        parts = [f'{len(self.matched)} of {own} tensors fit']
        for names, what in (
            (self.missing, 'not in the file'),
            (self.misshapen, 'of another shape'),
            (self.unused, 'in the file, but not used'),
        ):
            if names:
                parts.append(f'{len(names)} {what}: {_shorten(names)}')
        return '; '.join(parts)


def read_weights(path: str, prefix: str = '') -> dict[str, Tensor]:
    """The weights of a checkpoint whose names begin with `prefix`, without it.

    All of them if none begins so: then the file is of the part alone. No code of a file is executed.
    """
    # MMEngine's loader fetches from addresses, too; the tools let it load in the safe way only.
    content = CheckpointLoader.load_checkpoint(path, 'cpu') if '://' in path else load(path)
    nested = content.get('state_dict', content) if isinstance(content, Mapping) else {}
    weights = {
        str(name).removeprefix('module.'): value
        for name, value in nested.items()
        if isinstance(value, Tensor)
    }
    if not weights:
        raise UserError(f'checkpoint {path!r} holds no weights: expected tensors under state_dict')
    own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    return own or weights


def compare(model: nn.Module, weights: Mapping[str, Tensor]) -> Fit:
    """Which tensors of a model find weights of their name and shape; tables of positions are resized."""
    own = model.state_dict()
    tables = {
        f'{name}.weight'
        for name, module in model.named_modules()
        if isinstance(module, PositionEmbedding | RelativePositionBias)
    }

    def fits(name: str) -> bool:
        kept = slice(0, 2) if name in tables and weights[name].dim() == own[name].dim() else slice(None)
        return weights[name].shape[kept] == own[name].shape[kept]

    return Fit(
        matched=tuple(name for name in own if name in weights and fits(name)),
        missing=tuple(name for name in own if name not in weights),
        misshapen=tuple(name for name in own if name in weights and not fits(name)),
        unused=tuple(name for name in weights if name not in own),
    )


def load_pretrained(backbone: nn.Module, path: str, prefix: str = 'backbone.') -> Fit:
    """Start a backbone from the weights of a checkpoint, and log how they fit."""
    weights = read_weights(path, prefix)
    fit = compare(backbone, weights)
    strangers = _blocks_that_differ(backbone.state_dict(), fit.matched) or _blocks_that_differ(
        weights, fit.matched
    )
    if strangers or not fit.matched:
        raise UserError(
            f'weights {path!r} are of another architecture than {type(backbone).__name__}: '
            + (f'{_shorten(strangers)} do not fit; ' if strangers else '')
            + fit.describe()
        )
    backbone.load_state_dict({name: weights[name] for name in fit.matched}, strict=False)
    whole = not (fit.missing or fit.misshapen)
    print_log(
        f'pretrained weights {path!r}: {fit.describe()}',
        logger='current',
        level=logging.INFO if whole else logging.WARNING,
    )
    return fit


def check_whole(model: nn.Module, path: str) -> None:
    """Refuse to test a model with a checkpoint that leaves some of its weights as they were drawn."""
    fit = compare(model, read_weights(path))
    if fit.missing or fit.misshapen:
        raise UserError(f'checkpoint {path!r} is of another model than the config: {fit.describe()}')


def _blocks_that_differ(tensors: Mapping[str, Any], matched: Collection[str]) -> list[str]:
    """Blocks too few of whose numbers are matched."""
    known, whole, found = set(matched), Counter[str](), Counter[str]()
    for name, tensor in tensors.items():
        block = _BLOCK.match(name)
        if block:
            whole[block[0]] += tensor.numel()
            found[block[0]] += tensor.numel() if name in known else 0
    return [block for block in whole if found[block] < _SAME_BLOCK * whole[block]]


def _shorten(names: Collection[str]) -> str:
    shown = ', '.join(list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f'{shown} and {len(names) - _SHOWN} more'
