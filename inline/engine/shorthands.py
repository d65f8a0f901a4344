"""Flags of tools/train.py for common settings, mapped to the keys of any toolbox's config.

``--epochs`` needs the length of the dataset, so :func:`inline.engine.schedule.set_epochs` applies it later.
"""

import argparse
import math
from collections.abc import Iterator
from typing import Any

from mmengine.config import Config, ConfigDict

from inline.engine.config import DATALOADERS
from inline.utils.arguments import check_range
from inline.utils.errors import UserError
from inline.utils.nested import walk_dicts

MAX_BATCH, MAX_WORKERS, MAX_SEED = 2**20, 1024, 2**32 - 1
MIN_SIZE, MAX_SIZE = 32, 8192
# Transforms of the toolboxes, and the arguments that are image sizes.
_SIZES = {
    'RandomResizedCrop': ('scale',),
    'EfficientNetRandomCrop': ('scale',),
    'EfficientNetCenterCrop': ('crop_size',),
    'Resize': ('scale',),
    'ResizeEdge': ('scale',),
    'RandomResize': ('scale',),
    'RandomChoiceResize': ('scales',),
    'ResizeShortestEdge': ('scale', 'max_size'),
    'ResizeToMultiple': (),
    'FixShapeResize': ('width', 'height'),
    'CenterCrop': ('crop_size',),
    'RandomCrop': ('crop_size',),
    'RandomCenterCropPad': ('crop_size',),
    'MinIoURandomCrop': (),
    'Pad': ('size',),
    'Mosaic': ('img_scale',),
    'CachedMosaic': ('img_scale',),
    'MixUp': ('img_scale',),
    'CachedMixUp': ('img_scale',),
    'YOLOXMixUp': ('img_scale',),
    'torchvision/Resize': ('size', 'max_size'),
    'torchvision/RandomResizedCrop': ('size',),
    'torchvision/CenterCrop': ('size',),
    'torchvision/RandomCrop': ('size',),
}
# Arguments that are image sizes in most transforms. In a transform that is not listed above, refuse to guess.
_SIZE_KEYS = ('scale', 'scales', 'size', 'crop_size', 'img_scale', 'img_size', 'max_size')


def apply_shorthands(cfg: Config, args: argparse.Namespace) -> None:
    """Apply ``--batch-size``, ``--lr``, ``--img-size``, ``--workers`` and ``--seed``, as far as given."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    if 'batch_size' in given:
        set_batch_size(cfg, given['batch_size'])
    if 'lr' in given:
        set_learning_rate(cfg, given['lr'])
    if 'img_size' in given:
        set_image_size(cfg, given['img_size'])
    if 'workers' in given:
        set_workers(cfg, given['workers'])
    if 'seed' in given:
        check_range('--seed', given['seed'], 0, MAX_SEED)
        cfg.randomness = ConfigDict(cfg.get('randomness') or {}, seed=given['seed'])


def set_batch_size(cfg: Config, size: int) -> None:
    """Set the number of training images per process and step."""
    check_range('--batch-size', size, 1, MAX_BATCH)
    loader = cfg.get('train_dataloader')
    if loader is None:
        raise UserError('--batch-size: the config has no train_dataloader')
    loader.batch_size = size
    # Samplers that draw from several sources also have a batch size.
    if 'batch_size' in (loader.get('sampler') or {}):
        loader.sampler.batch_size = size


def set_learning_rate(cfg: Config, rate: float) -> None:
    """Set the learning rate of the optimizer, or of all optimizers if they have the same one."""
    if not (math.isfinite(rate) and rate >= 0):
        raise UserError(f'--lr {rate}: must be a number, at least 0')
    optimizers = [
        node['optimizer']
        for _, node in walk_dicts(cfg.get('optim_wrapper'))
        if isinstance(node.get('optimizer'), dict)
    ]
    if not optimizers:
        raise UserError('--lr: the config has no optimizer in optim_wrapper')
    if len({optimizer.get('lr') for optimizer in optimizers}) > 1:
        raise UserError(
            f'--lr: the config has {len(optimizers)} optimizers with different rates; use --cfg-options'
        )
    for optimizer in optimizers:
        optimizer['lr'] = rate
    for _, scheduler in walk_dicts(cfg.get('param_scheduler')):
        _fit_scheduler(scheduler, rate)


def _fit_scheduler(scheduler: dict[str, Any], rate: float) -> None:
    """Adapt the absolute rates of a scheduler; factors are relative to the optimizer's rate."""
    kind = str(scheduler.get('type')).rpartition('.')[2]
    if kind == 'OneCycleLR':
        scheduler['eta_max'] = rate
    lowest = scheduler.get('eta_min')
    if kind.endswith('LR') and isinstance(lowest, int | float) and lowest > rate:
        raise UserError(f'--lr {rate}: is below the final rate of the schedule, eta_min {lowest} of {kind}')


def set_workers(cfg: Config, workers: int) -> None:
    """Set the number of data loading processes of all dataloaders; 0 loads in the training process."""
    check_range('--workers', workers, 0, MAX_WORKERS)
    for name in DATALOADERS:
        loader = cfg.get(name)
        if loader is not None:
            loader.num_workers = workers
            loader.persistent_workers = workers > 0
            if workers == 0:
                loader.pop('prefetch_factor', None)


def set_image_size(cfg: Config, size: int) -> None:
    """Set the image size of a config, in place: pipelines, preprocessor, sliding window and backbone.

    All sizes keep their proportions.

    Args:
        cfg: The config.
        size: Of a classifier, the image that the model is tested with (the centre crop); of a detector, the
            shorter side of test images, with which the limit of the longer side is scaled; of a segmentor,
            the training crop.
    """
    check_range('--img-size', size, MIN_SIZE, MAX_SIZE)
    old = _current_size(cfg)
    if old is None:
        raise UserError(
            '--img-size: no transform in the pipelines of the config has a size; use --cfg-options'
        )
    ratio = size / old
    for name, step, keys in list(_sized_steps(cfg)):
        for key in keys:
            step[key] = _scale(step[key], ratio, f'{name}: {key} of {_type(step)}')
    for preprocessor in (cfg.get('data_preprocessor'), cfg.model.get('data_preprocessor')):
        for key, node in walk_dicts(preprocessor, 'data_preprocessor'):
            if node.get('size') is not None:
                node['size'] = _scale(node['size'], ratio, key)
    test_cfg = cfg.model.get('test_cfg') or {}
    for key in ('crop_size', 'stride'):
        if key in test_cfg:
            test_cfg[key] = _scale(test_cfg[key], ratio, f'model.test_cfg.{key}')
    _set_backbone_size(cfg, size, ratio)


def _set_backbone_size(cfg: Config, size: int, ratio: float) -> None:
    """Set ``img_size`` of a classifier's backbone, and of a third-party backbone that has the key.

    Our backbones accept images of any size. In detectors and segmentors their `img_size` is the size that
    the weights were pretrained at.
    """
    backbone = cfg.model.get('backbone') or {}
    is_ours = str(backbone.get('type')).startswith('inline.')
    if is_ours and cfg.default_scope == 'mmpretrain':
        backbone['img_size'] = size
    elif not is_ours and backbone.get('img_size') is not None:
        backbone['img_size'] = _scale(backbone['img_size'], ratio, 'model.backbone.img_size')


def _current_size(cfg: Config) -> int | None:
    """Return the size that the flag replaces, None if no transform has a size."""
    sized = [(name, key, _shorter_side(step[key])) for name, step, keys in _sized_steps(cfg) for key in keys]
    if cfg.default_scope == 'mmseg':
        for name, key, side in sized:
            if name == 'train_dataloader' and key == 'crop_size':
                return side
    for loader in ('test_dataloader', 'val_dataloader', 'train_dataloader'):
        sides = [side for name, _, side in sized if name == loader]
        if sides:
            # An image is resized and then cropped or padded: the last step gives what a classifier gets.
            return sides[-1] if cfg.default_scope == 'mmpretrain' else sides[0]
    return None


def _sized_steps(cfg: Config) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """Yield every transform with sizes: the name of its pipeline, its config and the keys of the sizes."""
    pipelines = {name: (cfg.get(name) or {}).get('dataset') for name in DATALOADERS}
    pipelines['tta_pipeline'] = cfg.get('tta_pipeline')
    visited: set[int] = set()
    for name, root in pipelines.items():
        for key, step in walk_dicts(root):
            is_step = name == 'tta_pipeline' or 'pipeline' in key.split('.')
            if not is_step or 'type' not in step or id(step) in visited:
                continue
            visited.add(id(step))
            kind = _type(step)
            sizes = [key for key in _SIZES.get(kind, _SIZE_KEYS) if step.get(key) is not None]
            if kind not in _SIZES and sizes:
                raise UserError(
                    f'--img-size: {sizes[0]} of {kind} in {name} may be a size or not; '
                    'set the sizes with --cfg-options'
                )
            # Fractions of the image.
            if kind == 'RandomCrop' and str(step.get('crop_type')).startswith('relative'):
                continue
            if sizes:
                yield name, step, sizes


def _type(step: dict[str, Any]) -> str:
    """Return the class of a transform without its scope; torchvision's keep their prefix."""
    kind = step['type']
    return str(getattr(kind, '__name__', kind)).rpartition('.')[2]


def _shorter_side(value: Any) -> int:
    """Return the shorter side of a size; of several sizes, the largest shorter side."""
    if isinstance(value, int | float):
        return int(value)
    if all(isinstance(item, int | float) for item in value):
        # (2048, -1) or (inf, 800): the other side is free.
        return int(min(item for item in value if item > 0))
    return max(_shorter_side(item) for item in value)


def _scale(value: Any, ratio: float, name: str) -> Any:
    """Multiply a size, or every size in a list, by `ratio`. Negative sides and infinity stay."""
    if isinstance(value, list | tuple):
        return type(value)(_scale(item, ratio, name) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f'--img-size cannot scale {name}, which is {value!r}')
    return value if value <= 0 or value == float('inf') else max(1, round(value * ratio))
