"""Small models of other projects with random weights, and a CSwin written from its paper."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from inline.ops import softmax_attention
from inline.registry import MODELS

CLASSES = 5


def randomize(model: nn.Module) -> nn.Module:
    """Fill all weights and positions with random numbers, so that each one affects the output."""
    torch.manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            nn.init.normal_(value, std=0.2)
    # Not chained: mmdet's Swin returns None.
    model.eval()
    return model


def timm_swin() -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    return SwinTransformer(
        img_size=128,
        window_size=4,
        embed_dim=8,
        depths=(2, 2, 3, 1),
        num_heads=(1, 2, 4, 8),
        num_classes=CLASSES,
    )


def timm_vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=64, embed_dim=24, depth=3, num_heads=3, mlp_ratio=3, num_classes=CLASSES
    )


def mm_classifier(backbone: dict[str, Any], head: str, neck: str | None, dim: int) -> nn.Module:
    return MODELS.build(
        {
            'type': 'mmpretrain.ImageClassifier',
            'backbone': backbone,
            'neck': neck and {'type': f'mmpretrain.{neck}'},
            'head': {'type': f'mmpretrain.{head}', 'num_classes': CLASSES, 'in_channels': dim},
        }
    )


def mmpretrain_swin() -> nn.Module:
    arch = {'embed_dims': 8, 'depths': [2, 2, 3, 1], 'num_heads': [1, 2, 4, 8]}
    backbone = {'type': 'mmpretrain.SwinTransformer', 'arch': arch, 'img_size': 128, 'window_size': 4}
    return mm_classifier(backbone, 'LinearClsHead', 'GlobalAveragePooling', 64)


def mmpretrain_vit() -> nn.Module:
    arch = {'embed_dims': 24, 'num_layers': 3, 'num_heads': 3, 'feedforward_channels': 72}
    backbone = {'type': 'mmpretrain.VisionTransformer', 'arch': arch, 'img_size': 64}
    return mm_classifier(backbone, 'VisionTransformerClsHead', None, 24)


def mmdet_swin() -> nn.Module:
    from mmdet.models.backbones import SwinTransformer

    return SwinTransformer(embed_dims=8, depths=(2, 2, 3, 1), num_heads=(1, 2, 4, 8), window_size=4)


def mmdet_pvt() -> nn.Module:
    from mmdet.models.backbones import PyramidVisionTransformer

    return PyramidVisionTransformer(
        embed_dims=8,
        num_layers=[2, 1, 2, 1],
        num_heads=[1, 2, 4, 8],
        sr_ratios=[8, 4, 1, 1],
        pretrain_img_size=64,
    )


class StripeAttention(nn.Module):
    """Softmax attention in stripes of (height, width) tokens, with LePE, one stripe after the other."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.get_v = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, qkv: Tensor, stripe: tuple[int, int]) -> Tensor:
        """(3, B, C, H, W) → (B, C, H, W)."""
        out = torch.empty_like(qkv[0])
        for top in range(0, qkv.shape[-2], stripe[0]):
            for left in range(0, qkv.shape[-1], stripe[1]):
                area = (..., slice(top, top + stripe[0]), slice(left, left + stripe[1]))
                tokens = qkv[area].flatten(3).unflatten(2, (self.heads, -1)).transpose(-1, -2)
                mixed = softmax_attention(*tokens).transpose(-1, -2).flatten(1, 2)
                value = qkv[2][area]
                out[area] = mixed.view_as(value) + self.get_v(value)
        return out


class CSwinBlock(nn.Module):
    def __init__(self, dim: int, heads: int, split: int | None) -> None:
        super().__init__()
        self.split = split
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        branches = 2 if split else 1
        self.attns = nn.ModuleList(
            StripeAttention(dim // branches, heads // branches) for _ in range(branches)
        )
        self.mlp = nn.ModuleDict({'fc1': nn.Linear(dim, 4 * dim), 'fc2': nn.Linear(4 * dim, dim)})

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to the same shape."""
        height, width = x.shape[1:3]
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, -1)).permute(3, 0, 4, 1, 2)
        stripes = [(height, self.split), (self.split, width)] if self.split else [(height, width)]
        parts = zip(self.attns, qkv.chunk(len(stripes), dim=2), stripes, strict=True)
        mixed = torch.cat([attention(part, stripe) for attention, part, stripe in parts], dim=1)
        x = x + self.proj(mixed.permute(0, 2, 3, 1))
        return x + self.mlp['fc2'](nn.functional.gelu(self.mlp['fc1'](self.norm2(x))))


class CSwin(nn.Module):
    """CSwin at 64 pixels with the names of the official repository: stripes of width 1, 2 and 2."""

    def __init__(self) -> None:
        super().__init__()
        dims, depths, heads = (8, 16, 32, 64), (1, 2, 2, 1), (2, 4, 8, 16)
        self.stage1_conv_embed = nn.Sequential(nn.Conv2d(3, 8, 7, 4, 2), nn.Identity(), nn.LayerNorm(8))
        for i, split in enumerate((1, 2, 2, None)):
            blocks = nn.ModuleList(CSwinBlock(dims[i], heads[i], split) for _ in range(depths[i]))
            self.add_module(f'stage{i + 1}', blocks)
            if i < 3:
                conv, norm = nn.Conv2d(dims[i], dims[i + 1], 3, 2, 1), nn.LayerNorm(dims[i + 1])
                self.add_module(f'merge{i + 1}', nn.ModuleDict({'conv': conv, 'norm': norm}))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, 64, 64) → logits."""
        conv, _, norm = self.stage1_conv_embed
        for i in range(4):
            x = norm(conv(x).permute(0, 2, 3, 1))
            for block in self.get_submodule(f'stage{i + 1}'):
                x = block(x)
            if i < 3:
                conv, norm = self.get_submodule(f'merge{i + 1}').values()
                x = x.permute(0, 3, 1, 2)
        return self.head(self.norm(x).mean(dim=(1, 2)))


# How to build a model, and the image size at which it is compared: windows divide the maps.
SOURCES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    'timm Swin': (timm_swin, 128),
    'timm ViT': (timm_vit, 64),
    'mmpretrain Swin': (mmpretrain_swin, 128),
    'mmpretrain ViT': (mmpretrain_vit, 64),
    'mmdet Swin': (mmdet_swin, 128),
    'mmdet PVT': (mmdet_pvt, 64),
    'CSwin': (CSwin, 64),
}
