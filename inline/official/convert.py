"""From a checkpoint of the authors to one of ours."""

from collections.abc import Mapping

import torch
from torch import Tensor

from inline.errors import UserError
from inline.official.catalogue import OFFICIAL, OfficialModel
from inline.official.keys import MisfitError, rename, tell_family


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
