"""Metadata of weights: preprocessing of their images and class names, as in timm.

The keys are those of timm's ``pretrained_cfg``. Published files carry them in their metadata and in
``config.json``. For a training checkpoint they are read from the config that it contains.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_type_hints

from inline.checkpoints.config_text import read_dict
from inline.utils.arguments import check_choice, check_names, check_type, format_value
from inline.utils.errors import UserError, printable

# Key of a checkpoint's meta, and of config.json.
META_KEY = 'pretrained_cfg'
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# 'center' keeps the aspect ratio and crops, 'squash' resizes to a square and crops.
CROP_MODES = ('center', 'squash')
INTERPOLATIONS = ('nearest', 'bilinear', 'bicubic', 'area', 'lanczos', 'box', 'hamming')


@dataclass(frozen=True)
class PretrainedCfg:
    """Preprocessing and classes of trained weights.

    Args:
        input_size: Channels, height and width of the images.
        mean, std: Per channel in RGB order, for pixel values of 0 to 1.
        interpolation: How images are resized.
        crop_pct: Share of the resized image's side that the central crop keeps.
        crop_mode: One of CROP_MODES.
        num_classes: Number of classes of the classifier; 0 if unknown.
        classes: Their names by label; empty if unknown.
    """

    input_size: tuple[int, ...] = (3, 224, 224)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: str = 'bicubic'
    crop_pct: float = 0.875
    crop_mode: str = 'squash'
    num_classes: int = 0
    classes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}


def parse_pretrained_cfg(values: Mapping[str, Any], source: str) -> PretrainedCfg:
    """Validate the mapping that a file contains; `source` names the file in messages."""
    what = f'{META_KEY} of {source}'
    types = get_type_hints(PretrainedCfg)
    check_names(values, types, 'key', what)
    for key, value in values.items():
        check_type(key, value, types[key], what)
    plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    cfg = PretrainedCfg(**plain)
    check_choice('crop_mode', cfg.crop_mode, CROP_MODES)
    check_choice('interpolation', cfg.interpolation, INTERPOLATIONS)
    if len(cfg.input_size) != 3 or min(cfg.input_size) < 1:
        raise UserError(f'input_size {format_value(cfg.input_size)} of {what}: must be (channels, H, W)')
    for key, numbers in (('mean', cfg.mean), ('std', cfg.std)):
        if len(numbers) != cfg.input_size[0] or not all(map(math.isfinite, numbers)):
            raise UserError(f'{key} {format_value(numbers)} of {what}: must have one number per channel')
    if min(cfg.std) <= 0 or not 0 < cfg.crop_pct <= 1:
        raise UserError(f'{what}: std must be positive, and crop_pct above 0 and at most 1')
    if cfg.classes and len(cfg.classes) != cfg.num_classes:
        raise UserError(f'{what} has {len(cfg.classes)} names for {cfg.num_classes} classes')
    return replace(cfg, classes=tuple(printable(name) for name in cfg.classes))


def pretrained_cfg_of_config(text: str, classes: Sequence[str] = ()) -> PretrainedCfg | None:
    """Derive the input of a model from the text of its config.

    Args:
        text: As MMEngine writes it to a checkpoint.
        classes: Names of the classes, if they are known.

    Returns:
        None if the config does not normalise with mean and std in RGB order.
    """
    model = read_dict(text, 'model')
    preprocessor = model.get('data_preprocessor') or read_dict(text, 'data_preprocessor')
    mean, std = preprocessor.get('mean'), preprocessor.get('std')
    if not (preprocessor.get('to_rgb') or preprocessor.get('bgr_to_rgb')) or mean is None or std is None:
        return None
    backbone = model.get('backbone') or {}
    head = model.get('head') or {}
    try:
        values: dict[str, Any] = {
            **_resizing(read_dict(text, 'test_dataloader'), backbone),
            'mean': [number / 255 for number in mean],
            'std': [number / 255 for number in std],
            'num_classes': int(head.get('num_classes') or len(classes)),
        }
        values['classes'] = list(classes) if len(classes) == values['num_classes'] else []
        return parse_pretrained_cfg(values, 'the config')
    except (UserError, TypeError, ValueError, KeyError, AttributeError, IndexError, ZeroDivisionError):
        # A config of another project with unknown transforms.
        return None


def _resizing(dataloader: Mapping[str, Any], backbone: Mapping[str, Any]) -> dict[str, Any]:
    """Return size, crop and interpolation from the steps of a test pipeline."""
    steps = {str(step['type']).split('.')[-1]: step for step in dataloader['dataset']['pipeline']}
    resize = steps.get('Resize') or steps.get('ResizeEdge') or {}
    crop = steps.get('CenterCrop') or {}
    size = _pair(crop.get('crop_size') or resize.get('scale') or backbone.get('img_size') or 224)
    keeps_ratio = 'ResizeEdge' in steps or resize.get('keep_ratio', False)
    resized = min(_pair(resize.get('scale') or size))
    return {
        'input_size': [backbone.get('in_channels', 3), *size],
        'crop_pct': min(size) / resized,
        'crop_mode': 'center' if keeps_ratio else 'squash',
        'interpolation': resize.get('interpolation', 'bilinear') if resize else 'bicubic',
    }


def _pair(size: Any) -> tuple[int, int]:
    """Return (height, width), from one number or from a pair."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
