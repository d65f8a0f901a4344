"""Weights on disk and how they go with a model: torch alone, and nothing of a file is executed."""

import argparse
import pickle
import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inline.errors import UserError
from inline.models.layers import PositionEmbedding, RelativePositionBias
from inline.safetensors_files import is_safetensors, read_safetensors

# Where training scripts keep weights in a checkpoint; the moving average before the last step's.
WEIGHT_KEYS = ('state_dict_ema', 'model', 'state_dict')

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

    @property
    def whole(self) -> bool:
        """Whether every tensor of the model found its weights."""
        return not (self.missing or self.misshapen)

    def describe(self) -> str:
        own = len(self.matched) + len(self.missing) + len(self.misshapen)
        parts = [f'{len(self.matched)} of {own} tensors fit']
        for names, what in (
            (self.missing, 'not in the file'),
            (self.misshapen, 'of another shape'),
            (self.unused, 'in the file, but not used'),
        ):
            if names:
                parts.append(f'{len(names)} {what}: {shorten(names)}')
        return '; '.join(parts)


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The weights of a .pth or .safetensors file, of ours or of the authors, by the names in the file."""
    return find_weights(read_content(path), path)


def read_content(path: str | Path) -> Any:
    """All that is in such a file. Nothing of it is executed."""
    try:
        return _read_safetensors(path) if is_safetensors(path) else _read_pickled(path)
    except OSError as error:
        # Only opening names the file: a place that is not in it is sought where its end was cut off.
        reason = error.strerror if error.filename else 'it is damaged or no checkpoint'
        raise UserError(f'{str(path)!r} cannot be read: {reason}') from error


def find_weights(content: Any, path: str | Path) -> dict[str, Tensor]:
    """The weights in what was read from `path`, without what torch's wrapper puts before their names."""
    if isinstance(content, Mapping):
        nested = next((content[key] for key in WEIGHT_KEYS if key in content), content)
        if isinstance(nested, Mapping) and nested and all(isinstance(v, Tensor) for v in nested.values()):
            return {str(key).removeprefix('module.'): value for key, value in nested.items()}
    raise UserError(f'{str(path)!r} holds no weights: expected tensors under one of {", ".join(WEIGHT_KEYS)}')


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


def start_from(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> Fit:
    """Load what fits; weights of another architecture, whose blocks do not fit, are refused."""
    fit = compare(model, weights)
    strangers = _blocks_that_differ(model.state_dict(), fit.matched) or _blocks_that_differ(
        weights, fit.matched
    )
    if strangers or not fit.matched:
        raise UserError(
            f'weights {source!r} are of another architecture than {type(model).__name__}: '
            + (f'{shorten(strangers)} do not fit; ' if strangers else '')
            + fit.describe()
        )
    model.load_state_dict({name: weights[name] for name in fit.matched}, strict=False)
    return fit


def numpy_data() -> list[Any]:
    """The types by which numpy's numbers stand in a pickled file; none where numpy is not installed."""
    try:
        import numpy as np
        from numpy._core import multiarray
    except ImportError:
        return []
    kinds = (np.bool_, np.uint8, np.uint32, np.int64, np.float32, np.float64)
    return [
        np.ndarray,
        np.dtype,
        multiarray._reconstruct,
        multiarray.scalar,
        *{type(np.dtype(kind)) for kind in kinds},
    ]


def shorten(names: Collection[str]) -> str:
    shown = ', '.join(list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f'{shown} and {len(names) - _SHOWN} more'


class _History:
    """In place of MMEngine's history of what was logged, which need not be installed and is not used."""


def _statistic(owner: Any, name: str) -> None:
    """In place of getattr, by which a history names its statistics and by which all else could be reached."""
    if owner is not _History or name not in ('min', 'max', 'mean', 'current'):
        raise pickle.UnpicklingError(f'GLOBAL getattr({owner!r}, {name!r}) is not a statistic of a history')


def _read_safetensors(path: str | Path) -> dict[str, Any]:
    try:
        return read_safetensors(path)
    except ImportError as error:
        raise UserError(f'{str(path)!r} needs the package safetensors: pip install safetensors') from error
    except OSError:
        raise
    except Exception as error:
        raise UserError(f'{str(path)!r} cannot be read: it is damaged or no safetensors file') from error


def _read_pickled(path: str | Path) -> Any:
    data = [
        *numpy_data(),
        (_History, 'mmengine.logging.history_buffer.HistoryBuffer'),
        (_statistic, 'builtins.getattr'),
        # Settings that the authors' scripts store beside the weights, read as plain containers.
        argparse.Namespace,
        (OrderedDict, 'yacs.config.CfgNode'),
    ]
    try:
        with torch.serialization.safe_globals(data):
            return torch.load(path, map_location='cpu', weights_only=True)
    except OSError:
        raise
    except Exception as error:
        # Wrong bytes lead unpickling to errors of any kind.
        foreign = re.search(r'GLOBAL (\S+)', str(error))
        reason = f'it holds {foreign[1]}, which is not data' if foreign else 'it is damaged or no checkpoint'
        raise UserError(f'{str(path)!r} cannot be read safely: {reason}') from error


def _blocks_that_differ(tensors: Mapping[str, Any], matched: Collection[str]) -> list[str]:
    """Blocks too few of whose numbers are matched."""
    known, whole, found = set(matched), Counter[str](), Counter[str]()
    for name, tensor in tensors.items():
        block = _BLOCK.match(name)
        if block:
            whole[block[0]] += tensor.numel()
            found[block[0]] += tensor.numel() if name in known else 0
    return [block for block in whole if found[block] < _SAME_BLOCK * whole[block]]
