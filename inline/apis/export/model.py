"""Networks to export: models that map a tensor of images to a tuple of tensors."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.model import BaseModel
from torch import Tensor, nn

from inline.apis.export.sliding import slide
from inline.apis.loading import TASKS, Classes, build_model
from inline.checkpoints import Checkpoint
from inline.engine.config import image_size
from inline.models.backbones.common import MIN_SIZE
from inline.utils.errors import UserError
from inline.utils.nested import leaf_datasets

# One pixel more than the stride of 32 gives the last feature map two rows and columns: torch.export requires
# dynamic sizes of at least two.
MIN_DYNAMIC_SIZE = MIN_SIZE + 1

_DETECTOR_SIZE = (800, 1280)
_SEGMENTOR_SIZE = 512


class ExportNetwork(nn.Module):
    """The exported part of a model: images (B, C, H, W) → a tuple of tensors with the names `outputs`.

    The outputs of a classifier are logits (B, classes) without softmax, those of a segmentor logits
    (B, classes, H, W) at the size of the images, and those of a backbone one feature map per stage in
    `out_indices`. For detectors, see :class:`inline.apis.export.detection.DetectionNetwork`.

    Args:
        module: The toolbox's classifier or segmentor, or a backbone. A segmentor with
            ``test_cfg.mode='slide'`` is applied to overlapping windows.
        task: ``'classification'``, ``'segmentation'``, ``'detection'`` or ``'features'``.
        mean, std: (C, 1, 1), to normalise pixel values of 0 to 255; None if the images are normalised.

    Attributes:
        outputs: Names of the outputs.
        min_size: Smallest height and width for dynamic shapes.
        max_batch: Largest batch size; None if it is not limited.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self, module: nn.Module, task: str, mean: Tensor | None = None, std: Tensor | None = None
    ) -> None:
        super().__init__()
        self.module, self.task = module, task
        self.register_buffer('mean', mean)
        self.register_buffer('std', std)
        self.outputs: tuple[str, ...] = ('logits',)
        self.min_size = (MIN_DYNAMIC_SIZE, MIN_DYNAMIC_SIZE)
        self.max_batch: int | None = None
        self.windows = sliding_windows(module) if task == 'segmentation' else None
        if self.windows is not None:
            # Two windows: torch.export requires dynamic sizes of at least two.
            height, width = self.windows[0]
            self.min_size = (max(MIN_DYNAMIC_SIZE, height + 1), max(MIN_DYNAMIC_SIZE, width + 1))
        if task == 'features':
            stages: tuple[int, ...] = module.out_indices  # type: ignore[assignment]
            self.outputs = tuple(f'features_{stage}' for stage in stages)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        x = self.normalize(image)
        if self.task == 'features':
            features: tuple[Tensor, ...] = self.module(x)
            return features
        if self.task != 'segmentation':
            return (self.module(x, mode='tensor'),)
        if self.windows is None:
            return (self.segment(x),)
        return (slide(self.segment, x, *self.windows),)

    def normalize(self, image: Tensor) -> Tensor:
        """Normalise pixel values, unless the images are normalised."""
        if self.mean is None or self.std is None:
            return image
        return (image - self.mean) / self.std

    def denormalize(self, image: Tensor) -> Tensor:
        """Return the input of the network for normalised images: the inverse of :meth:`normalize`."""
        if self.mean is None or self.std is None:
            return image
        return image * self.std + self.mean

    def describe(self) -> dict[str, Any]:
        """Return metadata of the outputs."""
        if self.windows is None:
            return {}
        return {'windows': {'size': list(self.windows[0]), 'stride': list(self.windows[1])}}

    def segment(self, x: Tensor) -> Tensor:
        """Return the logits of a segmentor at the size of the images."""
        logits = self.module(x, mode='tensor')
        size, align_corners = (x.shape[-2], x.shape[-1]), bool(self.module.align_corners)
        return F.interpolate(logits, size, mode='bilinear', align_corners=align_corners)

    def reference(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return what the toolbox computes: for sliding windows, mmseg's loop over windows."""
        if self.windows is None:
            outputs: tuple[Tensor, ...] = self(image)
            return outputs
        size = (image.shape[-2], image.shape[-1])
        metas = [{'img_shape': size, 'ori_shape': size} for _ in image]
        return (self.module.inference(self.normalize(image), metas),)  # type: ignore[operator]


Windows = tuple[tuple[int, int], tuple[int, int]]


def sliding_windows(segmentor: Any) -> Windows | None:
    """Return size and stride of a segmentor's windows, or None if it is applied to whole images."""
    cfg = segmentor.test_cfg
    if cfg.get('mode', 'whole') != 'slide':
        return None
    (height, width), (rows, columns) = cfg['crop_size'], cfg['stride']
    return (int(height), int(width)), (int(rows), int(columns))


class MatmulAvgPool2d(nn.Module):
    """:class:`torch.nn.AdaptiveAvgPool2d` as two matrix products. ONNX has it for fixed sizes only."""

    def __init__(self, bins: tuple[int, int]) -> None:
        super().__init__()
        self.bins = bins

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C, *bins)."""
        if self.bins == (1, 1):
            return x.mean(dim=(-2, -1), keepdim=True)
        return _pool_matrix(self.bins[0], x.shape[-2], x) @ x @ _pool_matrix(self.bins[1], x.shape[-1], x).T


def _pool_matrix(bins: int, side: int, like: Tensor) -> Tensor:
    """Return the averaging matrix (bins, side). Bins overlap if their number does not divide the side."""
    index = torch.arange(bins, device=like.device)
    first, last = index * side // bins, ((index + 1) * side + bins - 1) // bins
    position = torch.arange(side, device=like.device)
    inside = ((position >= first[:, None]) & (position < last[:, None])).to(like.dtype)
    return inside / inside.sum(dim=1, keepdim=True)


class IntegerUpsample(nn.Module):
    """mmseg's ``Upsample`` for integer factors. The original multiplies symbolic sizes by a float."""

    def __init__(self, factor: int, mode: str, align_corners: bool | None) -> None:
        super().__init__()
        self.factor, self.mode, self.align_corners = factor, mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        size = (x.shape[-2] * self.factor, x.shape[-1] * self.factor)
        return F.interpolate(x, size, mode=self.mode, align_corners=self.align_corners)


def make_traceable(model: nn.Module) -> nn.Module:
    """Copy a model and replace the toolboxes' modules that need concrete sizes by equivalent ones."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            replacement = _traceable_module(child)
            if replacement is not None:
                setattr(parent, name, replacement)
    return model


def _traceable_module(module: nn.Module) -> nn.Module | None:
    if isinstance(module, nn.AdaptiveAvgPool2d):
        size = module.output_size
        rows, columns = (size, size) if isinstance(size, int) or size is None else size
        return None if rows is None or columns is None else MatmulAvgPool2d((rows, columns))
    # Compared by name: mmseg is imported for segmentors only.
    if type(module).__module__.startswith('mmseg.') and type(module).__name__ == 'Upsample':
        factor = module.scale_factor
        if not module.size and isinstance(factor, float) and factor.is_integer():
            return IntegerUpsample(int(factor), str(module.mode), module.align_corners)  # type: ignore[arg-type]
    return None


@dataclass(frozen=True)
class ExportModel:
    """A model to export.

    Args:
        toolbox_model: The toolbox's model, with the weights of the checkpoint.
        network: The exported part, in evaluation mode.
        image: Description of the input: channels, value range, mean and standard deviation.
        classes: Class names by label; empty for features.
        labels: The same with colours and COCO ids; None for features.
    """

    toolbox_model: BaseModel
    network: ExportNetwork
    image: dict[str, Any]
    classes: tuple[str, ...]
    labels: Classes | None = None


def build_export_model(
    cfg: Config,
    checkpoint: str | Checkpoint | None,
    *,
    what: str = 'model',
    with_preprocessing: bool = False,
    image_masks: bool = False,
) -> ExportModel:
    """Build a config's model with the weights of a checkpoint and wrap it for export.

    Args:
        cfg: The config.
        checkpoint: Path or URL of the weights, or a checkpoint that was read; None for random weights. For
            the backbone, a file with backbone weights is enough.
        what: ``'model'`` or ``'backbone'``.
        with_preprocessing: Include the normalisation of pixel values.
        image_masks: Masks of a detector have the size of the image.
    """
    backbone_only = what == 'backbone'
    model, classes = build_model(cfg, checkpoint, backbone_only=backbone_only)
    image = _describe_image(cfg, with_preprocessing)
    mean = std = None
    if with_preprocessing:
        mean, std = (torch.tensor(image[key]).view(-1, 1, 1) for key in ('mean', 'std'))
    if backbone_only:
        network = ExportNetwork(model.backbone, 'features', mean, std)
    elif cfg.default_scope == 'mmdet':
        from inline.apis.export.detection import DetectionNetwork

        network = DetectionNetwork(model, mean, std, image_masks=image_masks)
    else:
        network = ExportNetwork(model, TASKS[cfg.default_scope], mean, std)
    if backbone_only:
        return ExportModel(model, network.eval(), image, ())
    return ExportModel(model, network.eval(), image, classes.names, classes)


def default_size(cfg: Config) -> tuple[int, int]:
    """Return the height and width of the test images of a config.

    If they keep their aspect ratio, these are the short side and the long one, which is at most 1.6 times the
    short side.
    """
    if cfg.default_scope == 'mmpretrain':
        return image_size(cfg)
    resized = _resized_size(cfg)
    if cfg.default_scope == 'mmdet':
        return resized or _DETECTOR_SIZE
    test_cfg = cfg.model.get('test_cfg') or {}
    if resized is None:
        size = (cfg.model.get('data_preprocessor') or {}).get('size') or _SEGMENTOR_SIZE
        resized = (size, size) if isinstance(size, int) else (size[0], size[1])
    if test_cfg.get('mode') == 'slide':
        crop = test_cfg['crop_size']
        return max(resized[0], crop[0]), max(resized[1], crop[1])
    return resized


def _resized_size(cfg: Config) -> tuple[int, int] | None:
    """Return the size to which the test pipeline of a config resizes images, or None."""
    node = next(leaf_datasets((cfg.get('test_dataloader') or {}).get('dataset')), None) or {}
    for transform in node.get('pipeline') or ():
        scale = transform.get('scale')
        if transform.get('type') not in ('Resize', 'mmdet.Resize', 'mmseg.Resize') or scale is None:
            continue
        width, height = (scale, scale) if isinstance(scale, int) else scale
        if not transform.get('keep_ratio'):
            return int(height), int(width)
        short, long = sorted((int(width), int(height)))
        return short, min(long, short * 8 // 5)
    return None


def _describe_image(cfg: Config, with_preprocessing: bool) -> dict[str, Any]:
    preprocessor: Mapping[str, Any] = cfg.model.get('data_preprocessor') or {}
    is_rgb = preprocessor.get('to_rgb') or preprocessor.get('bgr_to_rgb')
    channels = cfg.model.backbone.get('in_channels', 3)
    mean, std = preprocessor.get('mean'), preprocessor.get('std')
    if with_preprocessing and (mean is None or std is None):
        raise UserError('--with-preprocessing: the data_preprocessor of the config has no mean and std')
    return {
        'name': 'image',
        'layout': 'NCHW',
        'dtype': 'float32',
        'channels': channels,
        'order': 'RGB' if is_rgb else 'BGR',
        'values': '0 to 255' if with_preprocessing else '(pixel - mean) / std, of pixels 0 to 255',
        'mean': list(mean) if mean is not None else [0.0] * channels,
        'std': list(std) if std is not None else [1.0] * channels,
    }
