"""From a checkpoint of the authors to one of ours."""

import argparse
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inline.engine.safe_loading import NotDataError, load_safely
from inline.errors import UserError
from inline.official.catalogue import OFFICIAL, OfficialModel
from inline.official.keys import MisfitError, rename, tell_family

# Where training scripts keep weights in a checkpoint; the moving average before the last step's.
WEIGHT_KEYS = ('state_dict_ema', 'model', 'state_dict')


# Settings that training scripts store beside the weights, read as plain containers. Anything else in a
# file is refused, and nothing is run.
_HARMLESS: list[Any] = [argparse.Namespace, (OrderedDict, 'yacs.config.CfgNode')]


def read_content(path: str | Path) -> Any:
    """All that is in a checkpoint of the authors or of ours. No code of the file is executed."""
    try:
        return load_safely(path, also=_HARMLESS)
    except NotDataError as error:
        # Its advice to trust the file is no option here.
        raise UserError(
            f'{str(path)!r} cannot be read safely: it holds {error.what}, which is not data'
        ) from error


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """The weights of a checkpoint of the authors."""
    return find_weights(read_content(path), path)


def find_weights(content: Any, path: str | Path) -> dict[str, Tensor]:
    """The weights in what was read from `path`, without what torch's wrapper puts before their names."""
    if isinstance(content, Mapping):
        nested = next((content[key] for key in WEIGHT_KEYS if key in content), content)
        if isinstance(nested, Mapping) and nested and all(isinstance(v, Tensor) for v in nested.values()):
            return {str(key).removeprefix('module.'): value for key, value in nested.items()}
    raise UserError(f'{str(path)!r} holds no weights: expected tensors under one of {", ".join(WEIGHT_KEYS)}')


def is_ours(weights: Mapping[str, Tensor]) -> bool:
    """Whether the weights have our names already; the authors know no backbone apart."""
    return any(name.startswith('backbone.') for name in weights)


def convert(theirs: Mapping[str, Tensor]) -> tuple[OfficialModel, dict[str, Tensor]]:
    """Which released model the weights are of, and a classifier's state dict of ours.

    The released model is the one that all weights fit. Where one of 224 and one of 384 have the same
    shapes (CSwin-B), it is told as the former.
    """
    candidates = [model for model in OFFICIAL.values() if model.family == tell_family(theirs)]
    misfits = []
    for model in candidates:
        with torch.device('meta'):
            ours = model.build().state_dict()
        try:
            backbone = rename(theirs, ours)
        except MisfitError as error:
            misfits.append((len(error.problems), model.name, error))
            continue
        return model, {f'backbone.{key}': value for key, value in backbone.items()} | _rename_head(theirs)
    _, name, closest = min(misfits, key=lambda misfit: misfit[0])
    raise UserError(f'no released model fits; the closest is {name}, and there {closest}')


def _rename_head(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The linear classifier under mmpretrain's keys."""
    head = {key: value for key, value in theirs.items() if key.startswith('head.')}
    expected = {'head.weight', 'head.bias'}
    problems = [f'unknown: {key}' for key in sorted(head.keys() - expected)]
    problems += [f'missing: {key}' for key in sorted(expected - head.keys())]
    if problems:
        raise MisfitError(problems)
    return {key.replace('head.', 'head.fc.'): value for key, value in head.items()}
