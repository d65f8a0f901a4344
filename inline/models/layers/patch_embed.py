"""From a map to the tokens of a coarser one. Each gives ceil(H / stride) × ceil(W / stride) tokens."""

import torch.nn.functional as F
from torch import Tensor, nn

from inline.arguments import check_range
from inline.models.layers.maps import map_to_tokens
from inline.models.limits import MAX_WIDTH
from inline.ops.open_sizes import ceil_div, known


class ConvEmbed(nn.Module):
    """A convolution, and if wanted a norm: CSwin's embedding, whose patches overlap.

    A size that is not a whole number of strides is padded with zeros below and on the right.
    """

    def __init__(
        self, in_channels: int, dim: int, kernel_size: int, stride: int, padding: int, norm: bool = True
    ) -> None:
        super().__init__()
        check_range('in_channels', in_channels, 1, MAX_WIDTH)
        self.stride = stride
        self.proj = nn.Conv2d(in_channels, dim, kernel_size, stride, padding)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, C, H, W) → tokens (B, h·w, dim) and (h, w)."""
        x = self.proj(pad_to_multiple(x, self.stride))
        return self.norm(map_to_tokens(x)), (x.shape[-2], x.shape[-1])


class PatchEmbed(ConvEmbed):
    """Cut a map into patches that do not overlap, and project each to a token."""

    def __init__(self, in_channels: int, dim: int, patch_size: int, norm: bool = True) -> None:
        super().__init__(in_channels, dim, patch_size, patch_size, padding=0, norm=norm)


class PatchMerging(nn.Module):
    """Swin's downsampling: the four tokens of each 2×2 patch as one, normalised and projected."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * in_channels)
        self.reduction = nn.Linear(4 * in_channels, dim, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, C, H, W) → tokens (B, h·w, dim) and (h, w)."""
        x = pad_to_multiple(x, 2)
        hw = (x.shape[-2] // 2, x.shape[-1] // 2)
        # (B, C, h, row, w, column) → (B, h·w, column, row, C): down the columns of a patch first.
        x = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 2, 4, 5, 3, 1)
        return self.reduction(self.norm(x.flatten(3).flatten(1, 2))), hw


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Zeros below and to the right of a map until both sides are a multiple."""
    height, width = x.shape[-2:]
    if known(height % multiple == 0) and known(width % multiple == 0):
        return x
    below, right = (ceil_div(side, multiple) * multiple - side for side in (height, width))
    return F.pad(x, (0, right, 0, below))
