"""Configs by path or name, and models from a config and a checkpoint."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, DefaultScope

from inline.apis.stored_config import use_normalization
from inline.checkpoints import (
    Checkpoint,
    check_num_heads,
    load_complete_state_dict,
    read_checkpoint,
    select_submodule,
)
from inline.datasets.custom import fit_to_custom_data
from inline.datasets.custom.layouts import other_classes_error
from inline.engine.config import TOOLBOXES, apply_aliases, load_config, use_student
from inline.engine.launch import build_untrained_model
from inline.utils.drawing import Color, class_palette
from inline.utils.errors import UserError
from inline.utils.nested import leaf_datasets, max_num_classes, walk_dicts

TASKS = {'mmpretrain': 'classification', 'mmdet': 'detection', 'mmseg': 'segmentation'}


# COCO has ids for 91 categories, and boxes for 80 of them.
_IDS_WITHOUT_BOXES = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91)
COCO_IDS = tuple(number for number in range(1, 92) if number not in _IDS_WITHOUT_BOXES)


@dataclass(frozen=True)
class Classes:
    """The classes of a model: names by label, and an RGB colour for each.

    Attributes:
        names: Class names by label.
        palette: RGB colours by label.
        stored_ids: Ids of the classes in the COCO annotations of the data, if the checkpoint contains them.
        annotation_files: COCO annotation files of the config, which may not exist.
        from_checkpoint: Whether a checkpoint names the classes.
    """

    names: tuple[str, ...]
    palette: tuple[Color, ...]
    stored_ids: tuple[int, ...] = ()
    annotation_files: tuple[Path, ...] = field(default=(), repr=False)
    from_checkpoint: bool = False

    @cached_property
    def category_ids(self) -> tuple[int, ...]:
        """COCO category ids by label.

        They come from the checkpoint, from COCO for its 80 classes, or from the annotation files of the
        config. If none of these knows the classes, they are counted from 1.
        """
        if len(self.stored_ids) == len(self.names) > 0:
            return self.stored_ids
        if is_coco(self.names):
            return COCO_IDS
        for path in self.annotation_files:
            ids = _read_category_ids(path)
            if all(name in ids for name in self.names):
                return tuple(ids[name] for name in self.names)
        return tuple(range(1, len(self.names) + 1))


def is_coco(names: Sequence[str]) -> bool:
    """Return whether these are the 80 classes of COCO, in their order."""
    from mmdet.datasets import CocoDataset

    return tuple(names) == CocoDataset.METAINFO['classes']


def _read_category_ids(path: Path) -> dict[str, int]:
    """Return the ids in a COCO annotation file by name; `{}` if it is missing or invalid."""
    try:
        categories = json.loads(path.read_bytes())['categories']
        return {str(category['name']): int(category['id']) for category in categories}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def find_config(config: str | Path | Config, options: Mapping[str, Any] | None = None) -> Config:
    """Copy a config, or read it from a path or by its name in ``configs/``.

    `options` override settings of a config that is read from a file.
    """
    if isinstance(config, Config):
        if config.get('default_scope') not in TOOLBOXES:
            raise UserError(
                f'the config has default_scope {config.get("default_scope")!r}: '
                f'it must name the toolbox, one of {", ".join(TOOLBOXES)}'
            )
        copy = Config(config._cfg_dict.to_dict())
        apply_aliases(copy)
        return copy
    return load_config(config, options)


def build_model(
    cfg: Config, checkpoint: str | Path | Checkpoint | None = None, *, backbone_only: bool = False
) -> tuple[BaseModel, Classes]:
    """Build a config's model in evaluation mode and load all of its weights.

    Args:
        cfg: Changed in place: pretrained weights to start from are removed, mean and std are set to those of
            the checkpoint, and with ``custom_data`` also the number of classes. A distiller is replaced by
            its student.
        checkpoint: A source for :func:`inline.checkpoints.read_checkpoint`, or its result. Must contain every
            weight of the model. None keeps the random initialisation.
        backbone_only: Load only the weights of the backbone; others may be missing.

    Returns:
        The toolbox's model, and its classes.
    """
    use_student(cfg)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = read_checkpoint(checkpoint)
    meta = {} if checkpoint is None else checkpoint.dataset_meta
    names = meta.get('classes') or ()
    if 'custom_data' in cfg and checkpoint is not None and not backbone_only:
        _set_num_classes(cfg, names, checkpoint.source)
    if checkpoint is not None:
        use_normalization(cfg, checkpoint)
    model = build_untrained_model(cfg)
    config_meta = _dataset_meta(cfg)
    if checkpoint is not None:
        module, state_dict = model, checkpoint.state_dict
        if backbone_only:
            module, state_dict = model.backbone, select_submodule(state_dict, 'backbone.')
        check_num_heads(module, checkpoint.meta, checkpoint.source)
        load_complete_state_dict(module, state_dict, checkpoint.source)
    classes = _classes(cfg, {**config_meta, **meta} if names else config_meta)
    return model.eval(), replace(classes, from_checkpoint=bool(names))


def check_listed_classes(cfg: Config, classes: Classes) -> None:
    """Raise a :class:`UserError` if a config was fitted to data with other classes than a checkpoint's."""
    if 'custom_data' not in cfg:
        return
    node = next(leaf_datasets((cfg.get('test_dataloader') or {}).get('dataset')), None) or {}
    listed = node.get('classes') or (node.get('metainfo') or {}).get('classes') or ()
    if isinstance(listed, list | tuple) and listed and classes.from_checkpoint:
        names = tuple(str(name) for name in listed)
        if names != classes.names:
            raise other_classes_error(classes.names, names)


def _set_num_classes(cfg: Config, names: Sequence[str], source: str) -> None:
    """Set the number of classes from the checkpoint, or from the data if it does not name them."""
    if not names:
        try:
            fit_to_custom_data(cfg)
        except UserError as error:
            raise UserError(
                f'checkpoint {source!r} does not name its classes, and counting them failed: {error}'
            ) from error
        return
    for _, node in walk_dicts(cfg._cfg_dict):
        if 'num_classes' in node:
            node['num_classes'] = len(names)


def _dataset_meta(cfg: Config) -> dict[str, Any]:
    """Return classes and palette of the config's test dataset that are known without reading the data."""
    node = next(leaf_datasets((cfg.get('test_dataloader') or {}).get('dataset')), None)
    if node is None:
        return {}
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        dataset = DATASETS.get(node['type'])
    listed = {'classes': node['classes']} if isinstance(node.get('classes'), list | tuple) else {}
    return {**getattr(dataset, 'METAINFO', {}), **(node.get('metainfo') or {}), **listed}


def _classes(cfg: Config, meta: Mapping[str, Any]) -> Classes:
    count = max_num_classes(cfg.model)
    names = tuple(str(name) for name in meta.get('classes') or ())
    if len(names) != count and count:
        names = tuple(str(label) for label in range(count))
    # A list or an array.
    colors = () if meta.get('palette') is None else meta['palette']
    palette = tuple((int(red), int(green), int(blue)) for red, green, blue in colors)
    # A palette of a different length belongs to different classes.
    palette = palette if len(palette) == len(names) else class_palette(len(names))
    ids = tuple(int(number) for number in meta.get('category_ids') or ())
    return Classes(names, palette, ids, tuple(_annotation_files(cfg)))


def _annotation_files(cfg: Config) -> Iterator[Path]:
    """Yield the COCO annotation files that the datasets of a detector's config name."""
    if TASKS[cfg.default_scope] != 'detection':
        return
    for loader in ('test_dataloader', 'val_dataloader', 'train_dataloader'):
        for dataset in leaf_datasets((cfg.get(loader) or {}).get('dataset')):
            if str(dataset.get('ann_file', '')).endswith('.json'):
                yield Path(dataset.get('data_root') or '', dataset['ann_file'])
