"""Position: class token, learned position tables, relative position bias, LePE."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers.fast_paths import cache_by_size, is_plain
from inline.models.layers.patch_embed import map_to_tokens, tokens_to_map
from inline.ops.local_residual import compiles_any_size, depthwise_convolution
from inline.ops.symint import is_symbolic, statically_true


class ClassToken(nn.Module):
    """A learned token, with its own position embedding, before all others."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 1, dim))
        self.position = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) → (B, 1 + N, C)."""
        token = (self.weight + self.position).expand(x.shape[0], -1, -1)
        return torch.cat([token, x], dim=1)


class PositionEmbedding(nn.Module):
    """Learned position table of a map, interpolated for maps of other sizes.

    A table of another size in a state dict is interpolated to the size of this one.
    """

    def __init__(self, dim: int, hw: tuple[int, int], mode: str = 'bilinear') -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dim, *hw))
        self.mode = mode
        self.register_load_state_dict_pre_hook(resize_loaded_table)

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """Add the table to tokens (B, h·w, dim)."""
        return x + map_to_tokens(self.table(hw))

    def table(self, hw: tuple[int, int]) -> Tensor:
        """Return the table for a map of (h, w), as (1, dim, h, w)."""
        return resize_table(self.weight, hw, self.mode)


class RelativePositionBias(nn.Module):
    """Swin's learned bias per head and offset between two tokens of a window.

    It also supports smaller windows. A table of another window size in a state dict is interpolated.
    """

    def __init__(self, window: tuple[int, int], num_heads: int) -> None:
        super().__init__()
        rows, columns = (2 * side - 1 for side in window)
        self.weight = nn.Parameter(torch.zeros(1, num_heads, rows, columns))
        self.mode = 'bicubic'
        self.register_load_state_dict_pre_hook(resize_loaded_table)

    def forward(self, window: tuple[int, int]) -> Tensor:
        """Return (heads, h·w, h·w) for a window of (h, w)."""
        _, heads, rows, columns = self.weight.shape
        tokens, device = window[0] * window[1], self.weight.device
        if is_symbolic(*window):
            compiles = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
            make = _relative_index_op if compiles else _relative_index
            index = make(window, (rows, columns), device)
        else:
            index = cache_by_size(
                ('relative index', window, (rows, columns), device),
                lambda: _relative_index(window, (rows, columns), device),
            )
        return self.weight.view(heads, -1).index_select(1, index).view(heads, tokens, tokens)


def _relative_index(window: Sequence[int], table: Sequence[int], device: torch.device) -> Tensor:
    """Flat index into a table of offsets for each (query, key) pair of a window, ((h·w)²)."""
    offsets = []
    for side, size in zip(window, table, strict=True):
        if statically_true(2 * side - 1 > size):
            raise ValueError(f'a window of {side} tokens is too large for a table of {size} offsets')
        coordinate = torch.arange(side, device=device)
        offsets.append(coordinate[:, None] - coordinate[None, :] + size // 2)
    rows, columns = offsets
    # (h, h, w, w), the query before the key on each axis → (h, w, h, w).
    return (rows[:, :, None, None] * table[1] + columns).transpose(1, 2).flatten()


# For torch.compile with dynamic sizes, as the window partition.
@torch.library.custom_op('inline::relative_index', mutates_args=())
def _relative_index_op(window: Sequence[int], table: Sequence[int], device: torch.device) -> Tensor:
    return _relative_index(window, table, device)


@_relative_index_op.register_fake
def _(window: Sequence[int], table: Sequence[int], device: torch.device) -> Tensor:  # noqa: ARG001 (no effect on the shape)
    return torch.empty((window[0] * window[1]) ** 2, dtype=torch.long, device=device)


class LocallyEnhancedPosition(nn.Module):
    """CSwin's LePE: a depthwise 3×3 convolution of the values within each window."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim)

    def forward(self, v: Tensor, hw: tuple[int, int], channels: slice) -> Tensor:
        """(B, P + h·w, c), a slice of the C channels → (B, h·w, c)."""
        return convolve_channels(self.conv, tokens_to_map(v[:, v.shape[1] - hw[0] * hw[1] :], hw), channels)


def convolve_channels(conv: nn.Conv2d, maps: Tensor, channels: slice) -> Tensor:
    """Apply a depthwise convolution of C channels to maps (B, c, h, w) of some of them, to (B, h·w, c)."""
    if is_plain(conv, nn.Conv2d):
        bias = None if conv.bias is None else conv.bias[channels]
        weight = conv.weight[channels]
        if compiles_any_size(maps):
            kernels, hw = weight.flatten(1).unsqueeze(0), (maps.shape[2], maps.shape[3])
            return depthwise_convolution(map_to_tokens(maps), kernels, hw, bias)
        out = F.conv2d(maps, weight, bias, padding=weight.shape[-1] // 2, groups=maps.shape[1])
    else:
        # The module expects all C channels: the others are zero.
        others = (channels.start, conv.in_channels - channels.stop)
        out = conv(F.pad(maps, (0, 0, 0, 0, *others)))[:, channels]
    return map_to_tokens(out)


def resize_table(table: Tensor, hw: tuple[int, int], mode: str) -> Tensor:
    """(1, C, H, W) → (1, C, h, w)."""
    if statically_true(table.shape[-2] == hw[0]) and statically_true(table.shape[-1] == hw[1]):
        return table
    return F.interpolate(table, size=hw, mode=mode, align_corners=False)


def resize_loaded_table(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Interpolate a table in a state dict to the module's size before it is loaded."""
    key = prefix + 'weight'
    loaded, own = state_dict.get(key), module.get_parameter('weight')
    if loaded is not None and loaded.dim() == 4 and loaded.shape[1] == own.shape[1]:
        state_dict[key] = resize_table(loaded, (own.shape[2], own.shape[3]), module.mode)  # type: ignore[arg-type]
