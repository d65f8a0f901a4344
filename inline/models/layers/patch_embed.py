"""Patch embedding and downsampling. Each returns ceil(H / stride) × ceil(W / stride) tokens.

Also conversions between tokens (B, H·W, C) and maps (B, C, H, W).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers.fused_linear import linear
from inline.models.layers.norm import LayerNorm
from inline.ops.symint import ceil_div, statically_true
from inline.utils.arguments import check_range

# Sanity limit: larger values are almost certainly typos and would run out of memory.
MAX_WIDTH = 2**14


class ConvEmbed(nn.Module):
    """Embed patches with a strided convolution and an optional LayerNorm; CSwin's patches overlap.

    A size that is not a multiple of the stride is zero-padded at the bottom and the right.
    """

    def __init__(
        self, in_channels: int, dim: int, kernel_size: int, stride: int, padding: int, norm: bool = True
    ) -> None:
        super().__init__()
        check_range('in_channels', in_channels, 1, MAX_WIDTH)
        self.stride = stride
        self.proj = nn.Conv2d(in_channels, dim, kernel_size, stride, padding)
        self.norm = LayerNorm(dim) if norm else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, C, H, W) → tokens (B, h·w, dim) and (h, w)."""
        x = self.proj(pad_to_multiple(x, self.stride))
        return self.norm(map_to_tokens(x)), (x.shape[-2], x.shape[-1])


class PatchEmbed(ConvEmbed):
    """Project non-overlapping patches to tokens."""

    def __init__(self, in_channels: int, dim: int, patch_size: int, norm: bool = True) -> None:
        super().__init__(in_channels, dim, patch_size, patch_size, padding=0, norm=norm)


class PatchMerging(nn.Module):
    """Swin's downsampling: concatenate each 2×2 patch of tokens, normalise and project."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        self.norm = LayerNorm(4 * in_channels)
        self.reduction = nn.Linear(4 * in_channels, dim, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, C, H, W) → tokens (B, h·w, dim) and (h, w)."""
        x = pad_to_multiple(x, 2)
        hw = (x.shape[-2] // 2, x.shape[-1] // 2)
        # (B, C, h, row, w, column) → (B, h·w, column, row, C): Swin concatenates a patch column by column.
        x = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 2, 4, 5, 3, 1)
        return linear(self.reduction, self.norm(x.flatten(3).flatten(1, 2))), hw


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Zero-pad a map at the bottom and the right until both sides are a multiple."""
    height, width = x.shape[-2:]
    if statically_true(height % multiple == 0) and statically_true(width % multiple == 0):
        return x
    bottom, right = (ceil_div(side, multiple) * multiple - side for side in (height, width))
    return F.pad(x, (0, right, 0, bottom))


def map_to_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) → (B, H·W, C)."""
    return x.flatten(2).transpose(1, 2)


def tokens_to_map(x: Tensor, hw: tuple[int, int]) -> Tensor:
    """(B, H·W, C) → (B, C, H, W)."""
    return x.transpose(1, 2).unflatten(2, hw)
