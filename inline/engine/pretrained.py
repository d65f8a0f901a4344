"""Weights to start from: what fits is loaded and the rest told by name; another architecture is refused."""

import logging
from collections.abc import Mapping
from typing import Any

from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn

from inline.engine.safe_loading import install, load
from inline.errors import UserError
from inline.weights import Fit, compare, start_from


def read_checkpoint(path: str) -> Any:
    """The content of a checkpoint, given by its path or address. No code of it is executed."""
    if '://' not in path:
        return load(path)
    # MMEngine knows the addresses, lets one process fetch for all and keeps what was fetched; but a program
    # of the user's own may not have made it safe.
    install()
    return CheckpointLoader.load_checkpoint(path, 'cpu')


def read_weights(path: str, prefix: str = '') -> dict[str, Tensor]:
    """The weights of a checkpoint whose names begin with `prefix`, without it.

    All of them if none begins so: then the file is of the part alone. No code of a file is executed.
    """
    content = read_checkpoint(path)
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


def load_pretrained(backbone: nn.Module, path: str, prefix: str = 'backbone.') -> Fit:
    """Start a backbone from the weights of a checkpoint, and log how they fit."""
    weights = read_weights(path, prefix)
    fit = start_from(backbone, weights, path)
    print_log(
        f'pretrained weights {path!r}: {fit.describe()}',
        logger='current',
        level=logging.INFO if fit.whole else logging.WARNING,
    )
    return fit


def check_whole(model: nn.Module, path: str, prefix: str = '') -> None:
    """Refuse to use a model with a checkpoint that leaves some of its weights as they were drawn."""
    fit = compare(model, read_weights(path, prefix))
    if not fit.whole:
        raise UserError(f'checkpoint {path!r} is of another model than the config: {fit.describe()}')
