"""One training step on disk, as data: what it takes to run the step again.

The step's gradients follow from the weights, the batch and the random states before it. The optimizer's
state does not matter, because a step whose loss is not finite never reaches the optimizer.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

from inline.engine.safe_loading import load_safely
from inline.errors import UserError
from inline.whole_files import whole_file

_FORMAT = 'inline step 1'
_KIND = '__kind__'
# Where the classes are that a batch may hold. A file names one of these and no other: importing what a
# file names would run code of its choice.
_MODULES = {
    'BaseDataElement': 'mmengine.structures',
    'InstanceData': 'mmengine.structures',
    'LabelData': 'mmengine.structures',
    'PixelData': 'mmengine.structures',
    'DataSample': 'mmpretrain.structures',
    'MultiTaskDataSample': 'mmpretrain.structures',
    'DetDataSample': 'mmdet.structures',
    'HorizontalBoxes': 'mmdet.structures.bbox',
    'BitmapMasks': 'mmdet.structures.mask',
    'PolygonMasks': 'mmdet.structures.mask',
    'SegDataSample': 'mmseg.structures',
}


@dataclass(frozen=True)
class StepDump:
    """A step before it was taken.

    Args:
        step: Its number in the log, from 1.
        rank: Of the process that had the batch.
        device: What it ran on, 'cpu' or 'cuda'.
        images: Names of the batch's images.
        losses: Parts of the loss that it gave.
        weights: The model's state dict.
        batch: What the data loader gave, as plain data.
        random_states: Of Python, numpy and torch.
        config: The whole config, for people; it is never run.
        model_config: The part of it that the step depends on.
    """

    step: int
    rank: int
    device: str
    images: list[str]
    losses: dict[str, float]
    weights: dict[str, Tensor]
    batch: Any
    random_states: dict[str, Any]
    config: str
    model_config: str


def write_dump(dump: StepDump, path: str | Path) -> None:
    content = {field: getattr(dump, field) for field in dump.__dataclass_fields__}
    with whole_file(path) as part:
        torch.save({'format': _FORMAT, **content}, part)


def read_dump(path: str | Path) -> StepDump:
    content = load_safely(path)
    if not isinstance(content, Mapping) or content.get('format') != _FORMAT:
        raise UserError(f'{str(path)!r} is no dump of a step: give the file that a stopped training named')
    fields: dict[str, Any] = {field: content.get(field) for field in StepDump.__dataclass_fields__}
    missing = [name for name, value in fields.items() if value is None]
    if missing:
        raise UserError(f'dump {str(path)!r} has no {", ".join(missing)}: it is damaged')
    return StepDump(**fields)


def to_plain(value: Any) -> Any:
    """A batch as tensors, numbers, text and containers; what is none of these is kept as its description."""
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    if isinstance(value, Tensor):
        # A view would be saved with all of the memory that it looks into.
        return value.detach().cpu().clone()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in 'biufc':
        return {_KIND: 'ndarray', 'data': torch.from_numpy(np.ascontiguousarray(value))}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [to_plain(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return {_KIND: type(value).__name__, **_parts(value)}


def from_plain(value: Any) -> Any:
    """What :func:`to_plain` was given."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(from_plain(item) for item in value)
    if not isinstance(value, Mapping):
        return value
    parts = {key: from_plain(item) for key, item in value.items() if key != _KIND}
    if _KIND not in value:
        return parts
    kind = value[_KIND]
    if kind == 'ndarray':
        return parts['data'].numpy()
    if kind not in _MODULES:
        raise UserError(f'the batch holds {kind}, which a dump cannot keep: known are {", ".join(_MODULES)}')
    built = getattr(import_module(_MODULES[kind]), kind)
    if 'fields' not in parts:
        return built(**parts)
    element = built(metainfo=parts['metainfo'])
    for name, field in parts['fields'].items():
        element.set_field(field, name)
    return element


def _parts(value: Any) -> dict[str, Any]:
    """What an object of one of the known kinds is built from."""
    if isinstance(value, BaseDataElement):
        fields = {name: getattr(value, name) for name in sorted(value._data_fields)}
        return {'metainfo': to_plain(value.metainfo), 'fields': to_plain(fields)}
    kind = type(value).__name__
    if kind == 'HorizontalBoxes':
        return {'data': to_plain(value.tensor)}
    if kind in ('BitmapMasks', 'PolygonMasks'):
        return {'masks': to_plain(value.masks), 'height': value.height, 'width': value.width}
    return {'description': repr(value)[:200]}


def image_names(batch: Any) -> list[str]:
    """Names of all images in a batch, in its order."""
    if isinstance(batch, BaseDataElement):
        path = batch.metainfo.get('img_path')
        return [] if path is None else [str(path)]
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return [name for part in batch for name in image_names(part)]
    return []


def random_states(device: str) -> dict[str, Any]:
    """The states of all generators that a step may draw from."""
    states = {'python': random.getstate(), 'numpy': np.random.get_state(), 'torch': torch.get_rng_state()}
    return states | ({'cuda': torch.cuda.get_rng_state()} if device == 'cuda' else {})


def set_random_states(states: Mapping[str, Any]) -> None:
    version, numbers, gauss = states['python']
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(states['numpy'])
    torch.set_rng_state(states['torch'])
    if 'cuda' in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states['cuda'])
