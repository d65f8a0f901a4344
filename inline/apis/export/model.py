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

from inline.apis.loading import TASKS, build_model
from inline.engine.config import image_size
from inline.utils.errors import UserError

_DETECTOR_SIZE = (800, 1280)
_SEGMENTOR_SIZE = 512


class ExportNetwork(nn.Module):
    """The exported part of a model: images (B, C, H, W) → a tuple of tensors with the names `outputs`.

    The outputs of a classifier are logits (B, classes) without softmax, those of a segmentor logits
    (B, classes, H, W) at the size of the images, and those of a backbone one feature map per stage in
    `out_indices`.

    Args:
        module: The toolbox's classifier or segmentor, or a backbone.
        task: ``'classification'``, ``'segmentation'`` or ``'features'``.
        mean, std: (C, 1, 1), to normalise pixel values of 0 to 255; None if the images are normalised.
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
        if task == 'features':
            stages: tuple[int, ...] = module.out_indices  # type: ignore[assignment]
            self.outputs = tuple(f'features_{stage}' for stage in stages)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        x = image
        if self.mean is not None and self.std is not None:
            x = (image - self.mean) / self.std
        if self.task == 'features':
            features: tuple[Tensor, ...] = self.module(x)
            return features
        logits = self.module(x, mode='tensor')
        if self.task == 'segmentation':
            size, align_corners = (x.shape[-2], x.shape[-1]), bool(self.module.align_corners)
            logits = F.interpolate(logits, size, mode='bilinear', align_corners=align_corners)
        return (logits,)


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
    """

    toolbox_model: BaseModel
    network: ExportNetwork
    image: dict[str, Any]
    classes: tuple[str, ...]


def build_export_model(
    cfg: Config, checkpoint: str, *, what: str = 'model', with_preprocessing: bool = False
) -> ExportModel:
    """Build a config's model with the weights of a checkpoint and wrap it for export.

    Args:
        cfg: The config.
        checkpoint: Path or URL of the weights. For the backbone, a file with backbone weights is enough.
        what: ``'model'`` or ``'backbone'``.
        with_preprocessing: Include the normalisation of pixel values.
    """
    backbone_only = what == 'backbone'
    if not backbone_only and cfg.default_scope == 'mmdet':
        raise UserError(
            'a detector cannot be exported as a whole model, because its boxes are computed outside the '
            'network: use --what backbone'
        )
    model, classes = build_model(cfg, checkpoint, backbone_only=backbone_only)
    image = _describe_image(cfg, with_preprocessing)
    scale = [torch.tensor(image[key]).view(-1, 1, 1) for key in ('mean', 'std') if with_preprocessing]
    if backbone_only:
        network = ExportNetwork(model.backbone, 'features', *scale)
    else:
        network = ExportNetwork(model, TASKS[cfg.default_scope], *scale)
    return ExportModel(model, network.eval(), image, () if backbone_only else classes.names)


def default_size(cfg: Config) -> tuple[int, int]:
    """Return the usual height and width of the images of a config."""
    if cfg.default_scope == 'mmdet':
        return _DETECTOR_SIZE
    if cfg.default_scope == 'mmpretrain':
        return image_size(cfg)
    size = (cfg.model.get('data_preprocessor') or {}).get('size') or _SEGMENTOR_SIZE
    return (size, size) if isinstance(size, int) else (size[0], size[1])


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
