"""One small classifier, and files with its weights in every format that can be read."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging.history_buffer import HistoryBuffer
from safetensors.torch import save_file
from torch import Tensor

from inline.checkpoints.official import OfficialModel
from inline.engine.config import load_config
from inline.hub.backbones import InLineBackbone
from inline.hub.publish import publish
from inline.models import InLineDeiT
from tests.conftest import ROOT

ARCH = {'embed_dims': 16, 'depth': 2, 'num_heads': 2, 'img_size': 32, 'patch_size': 8, 'mlp_ratio': 2}
CLASSES = tuple('0123456789')


class SmallOfficialModel(OfficialModel):
    """Stands for a released model."""

    def build(self) -> InLineDeiT:
        return InLineDeiT(dict(ARCH), out_type='cls_token')


OFFICIAL = {'inline-deit-small': SmallOfficialModel('deit', 'small', 32)}


def build_backbone(num_classes: int = len(CLASSES)) -> InLineBackbone:
    return InLineBackbone('deit', dict(ARCH), num_classes=num_classes)


def write_config(path: Path) -> Path:
    """Write the config of a digit classifier with that backbone."""
    cfg = load_config(ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py')
    cfg.model.backbone = {'type': 'inline.InLineDeiT', 'arch': dict(ARCH), 'out_type': 'cls_token'}
    cfg.model.neck = None
    cfg.model.head.in_channels = ARCH['embed_dims']
    cfg.dump(path)
    return path


def make_weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    state_dict = build_backbone().state_dict()
    return {name: torch.randn(value.shape, generator=generator) for name, value in state_dict.items()}


def authors_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the names of the authors' code."""
    renamed = {}
    for name, value in weights.items():
        name = name.removeprefix('backbone.').replace('head.fc.', 'head.')
        name = re.sub(r'mixer\.residual\.fc(\d)', lambda m: f'attn.residual.{2 * int(m[1]) - 2}', name)
        renamed[name.replace('mixer.', 'attn.')] = value
    positions = renamed.pop('position.weight').flatten(2).transpose(1, 2)
    renamed['pos_embed'] = torch.cat([renamed.pop('class_token.position'), positions], dim=1)
    renamed['cls_token'] = renamed.pop('class_token.weight')
    return renamed


def write_formats(folder: Path) -> dict[str, str]:
    """Write :func:`make_weights` in all formats; return sources for ``read_checkpoint`` by format."""
    weights = make_weights()
    last_step = {name: torch.zeros_like(value) for name, value in weights.items()}
    theirs = authors_names(weights)
    training: dict[str, Any] = {
        'meta': {
            'cfg': Config.fromfile(write_config(folder / 'config.py')).pretty_text,
            'dataset_meta': {'classes': CLASSES, 'palette': np.zeros((10, 3), np.uint8)},
            'epoch': 1,
            'iter': 2,
            'seed': 0,
        },
        'state_dict': weights,
        'message_hub': {'log_scalars': {'loss': HistoryBuffer([1.0], [1])}, 'step': np.int64(3)},
        'optimizer': {'state': {0: {'step': torch.tensor(1.0)}}, 'param_groups': [{'lr': 0.1}]},
    }
    contents: dict[str, Any] = {
        'training': training,
        # MMEngine saves the average as state_dict and the weights of the last step as ema_state_dict.
        'training with EMA': {
            **training,
            'ema_state_dict': {**{f'module.{name}': value for name, value in last_step.items()}},
        },
        'DDP': {'state_dict': {f'module.{name}': value for name, value in weights.items()}},
        'plain state dict': weights,
        'authors': {'model': theirs, 'epoch': 299},
        'authors with EMA': {'model': authors_names(last_step), 'state_dict_ema': theirs},
    }
    sources = {}
    for name, content in contents.items():
        path = folder / f'{name}.pth'
        torch.save(content, path)
        sources[name] = str(path)
    theirs = {name: value.contiguous() for name, value in theirs.items()}
    for name, tensors in (('safetensors', weights), ('authors as safetensors', theirs)):
        save_file(tensors, folder / f'{name}.safetensors')
        sources[name] = str(folder / f'{name}.safetensors')
    sources['published folder'] = str(publish(sources['training'], folder / 'published').file.parent)
    model = build_backbone()
    model.load_state_dict(weights)
    model.save_pretrained(folder / 'saved')
    sources['saved folder'] = str(folder / 'saved')
    sources['URL'] = f'file://{sources["training"].replace(" ", "%20")}'
    return sources
