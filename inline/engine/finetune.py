"""Fitting a config of ``configs/finetune/`` to the user's own data."""

from collections.abc import Callable
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.dist import is_main_process

from inline.datasets.own_data import (
    IMAGE_SUFFIXES,
    CocoFormat,
    ImageFolder,
    LabelMaps,
    OwnData,
    read_coco_format,
    read_image_folder,
    read_label_maps,
)
from inline.engine.config import walk_dicts
from inline.errors import UserError

READERS: dict[str, Callable[[Path], OwnData]] = {
    'image-folder': read_image_folder,
    'coco-format': read_coco_format,
    'label-maps': read_label_maps,
}
_LOADERS = (('train', 'train'), ('val', 'val'), ('test', 'val'))
_SHOWN = 10


def fit_to_own_data(cfg: Config) -> None:
    """Read classes, counts and colours from the data where a config's ``own_data`` asks for it."""
    if 'own_data' not in cfg:
        return
    if cfg.own_data not in READERS:
        raise UserError(f'own_data {cfg.own_data!r} in the config: choose one of {", ".join(READERS)}')
    data = READERS[cfg.own_data](Path(cfg.train_dataloader.dataset.data_root))
    for _, part in walk_dicts(cfg.model):
        if 'num_classes' in part:
            part['num_classes'] = len(data.classes)
    if isinstance(data, ImageFolder):
        _fit_image_folder(cfg, data)
    elif isinstance(data, CocoFormat):
        _fit_coco_format(cfg, data)
    else:
        _fit_label_maps(cfg, data)
    if is_main_process():
        print(describe(data), flush=True)


def describe(data: OwnData) -> str:
    """The classes and counts in one line."""
    names = ', '.join(data.classes[:_SHOWN]) + (', …' if len(data.classes) > _SHOWN else '')
    counts = f'{data.counts["train"]:,} training and {data.counts["val"]:,} validation images'
    return f'own data: {counts}, {len(data.classes)} classes ({names})'


def _fit_image_folder(cfg: Config, data: ImageFolder) -> None:
    cfg.data_preprocessor.num_classes = len(data.classes)
    for loader, _ in _LOADERS:
        dataset = cfg[f'{loader}_dataloader'].dataset
        dataset.classes = list(data.classes)
        # All that were counted; mmpretrain by itself passes over some, such as .webp, without a word.
        dataset.extensions = list(IMAGE_SUFFIXES)


def _fit_coco_format(cfg: Config, data: CocoFormat) -> None:
    needs_masks = any(step.get('with_mask') for _, step in walk_dicts(cfg.train_dataloader))
    if needs_masks and not data.has_masks:
        raise UserError(
            f'{data.files["train"]} has annotations without a segmentation, and the config trains masks: '
            'take one for boxes, such as configs/finetune/retinanet_inline-pvt-tiny_coco-format.py'
        )
    for loader, split in _LOADERS:
        dataset = cfg[f'{loader}_dataloader'].dataset
        dataset.metainfo = ConfigDict(classes=list(data.classes))
        dataset.ann_file = data.files[split]
        dataset.data_prefix = ConfigDict(img=data.folders[split])
    for evaluator in ('val_evaluator', 'test_evaluator'):
        cfg[evaluator].ann_file = str(Path(cfg.val_dataloader.dataset.data_root, data.files['val']))


def _fit_label_maps(cfg: Config, data: LabelMaps) -> None:
    for loader, split in _LOADERS:
        dataset = cfg[f'{loader}_dataloader'].dataset
        dataset.metainfo = ConfigDict(classes=list(data.classes), palette=data.palette)
        dataset.data_prefix = ConfigDict(
            img_path=data.image_folders[split], seg_map_path=data.label_folders[split]
        )
        dataset.img_suffix, dataset.seg_map_suffix = data.image_suffix, data.label_suffix
