"""What is exported: a config's model as a program calls it, one tensor of images in, tensors out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.model import BaseModel
from torch import Tensor, nn

from inline.engine.config import check_checkpoint, image_size
from inline.engine.pretrained import check_whole, read_weights
from inline.errors import UserError
from inline.inference.loading import build_model

_DETECTOR_SIZE = (800, 1280)
_SEGMENTOR_SIZE = 512


class Network(nn.Module):
    """Images (B, C, H, W) → tensors, whose names are `outputs`."""

    outputs: tuple[str, ...] = ('logits',)


class Classifier(Network):
    """Images (B, 3, H, W) → logits (B, classes), without softmax."""

    def __init__(self, model: BaseModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor]:
        return (self.model(image, mode='tensor'),)


class Segmentor(Network):
    """Images (B, 3, H, W) → logits (B, classes, H, W): what the head gives, resized to the image."""

    def __init__(self, model: BaseModel) -> None:
        super().__init__()
        self.model = model
        self.align_corners = bool(model.align_corners)

    def forward(self, image: Tensor) -> tuple[Tensor]:
        logits = self.model(image, mode='tensor')
        size = (image.shape[-2], image.shape[-1])
        return (F.interpolate(logits, size, mode='bilinear', align_corners=self.align_corners),)


class Features(Network):
    """Images (B, 3, H, W) → the features of each stage that the backbone returns."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        stages: tuple[int, ...] = backbone.out_indices  # type: ignore[assignment]
        self.outputs = tuple(f'features_{stage}' for stage in stages)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        features: tuple[Tensor, ...] = self.backbone(image)
        return features


class Preprocessed(Network):
    """Takes pixels of 0 to 255 and normalises them before the network."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: Network, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.network = network
        self.outputs = network.outputs
        self.register_buffer('mean', mean)
        self.register_buffer('std', std)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        outs: tuple[Tensor, ...] = self.network((image - self.mean) / self.std)
        return outs


@dataclass(frozen=True)
class Subject:
    """A model to export.

    Args:
        toolbox_model: The toolbox's own model, with the checkpoint's weights.
        network: What is exported of it, in evaluation mode.
        task: classification, segmentation or features.
        image: What the input is: channels, range, mean and deviation.
        classes: Names by number; none for features.
    """

    toolbox_model: BaseModel
    network: Network
    task: str
    image: dict[str, Any]
    classes: tuple[str, ...]


def build_subject(
    cfg: Config, checkpoint: str, *, what: str = 'model', with_preprocessing: bool = False
) -> Subject:
    """Build a config's model with the weights of a checkpoint, and wrap what is wanted of it."""
    if what == 'model' and cfg.default_scope == 'mmdet':
        raise UserError(
            'a detector is not exported whole, since its boxes are not made by the network alone: '
            'take --what backbone'
        )
    network: Network
    names: tuple[str, ...] = ()
    if what == 'backbone':
        # Of a file of backbone weights alone, too.
        check_checkpoint(checkpoint)
        model, _ = build_model(cfg, None)
        check_whole(model.backbone, checkpoint, 'backbone.')
        model.backbone.load_state_dict(read_weights(checkpoint, 'backbone.'), strict=False)
        network, task = Features(model.backbone), 'features'
    else:
        model, classes = build_model(cfg, checkpoint)
        names = classes.names
        if cfg.default_scope == 'mmpretrain':
            network, task = Classifier(model), 'classification'
        else:
            network, task = Segmentor(model), 'segmentation'
    image = _describe_image(cfg, with_preprocessing)
    if with_preprocessing:
        mean, std = (torch.tensor(image[key]).view(-1, 1, 1) for key in ('mean', 'std'))
        network = Preprocessed(network, mean, std)
    return Subject(model, network.eval(), task, image, names)


def usual_size(cfg: Config) -> tuple[int, int]:
    """Height and width of the images that a config's model is made for."""
    if cfg.default_scope == 'mmdet':
        return _DETECTOR_SIZE
    if cfg.default_scope == 'mmpretrain':
        return image_size(cfg)
    own = (cfg.model.get('data_preprocessor') or {}).get('size') or _SEGMENTOR_SIZE
    return (own, own) if isinstance(own, int) else (own[0], own[1])


def backbone_size(cfg: Config) -> int:
    """The longer side of the images that a config's backbone is made for."""
    return max(image_size(cfg))


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
