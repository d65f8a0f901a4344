from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers.maps import map_to_tokens
from inline.ops.open_sizes import known


class PositionEmbedding(nn.Module):
    """One learned vector per place of a map; resized to a map of another size.

    Weights of another size load too: they are resized to this table's.
    """

    def __init__(self, dim: int, hw: tuple[int, int], mode: str = 'bilinear') -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dim, *hw))
        self.mode = mode
        self.register_load_state_dict_pre_hook(resize_loaded_table)

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """Add the table to tokens (B, h·w, dim)."""
        return x + map_to_tokens(resize_table(self.weight, hw, self.mode))


class RelativePositionBias(nn.Module):
    """Swin's learned bias for each head and each offset between two tokens of a window.

    It serves smaller windows too, and weights made for windows of another size load resized.
    """

    def __init__(self, window: tuple[int, int], num_heads: int) -> None:
        super().__init__()
        rows, columns = (2 * side - 1 for side in window)
        self.weight = nn.Parameter(torch.zeros(1, num_heads, rows, columns))
        self.mode = 'bicubic'
        self.register_load_state_dict_pre_hook(resize_loaded_table)

    def forward(self, window: tuple[int, int]) -> Tensor:
        """(heads, h·w, h·w) for a window of (h, w)."""
        rows, columns = (
            self._offsets(side, size) for side, size in zip(window, self.weight.shape[2:], strict=True)
        )
        # (heads, h, h, w, w), on each axis the query before the key.
        bias = self.weight[0][:, rows[:, :, None, None], columns[None, None]]
        return bias.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def _offsets(self, side: int, size: int) -> Tensor:
        """Places in the table of query − key, (side, side)."""
        if known(2 * side - 1 > size):
            raise ValueError(f'a window of {side} tokens is too large for a table of {size} offsets')
        place = torch.arange(side, device=self.weight.device)
        return place[:, None] - place[None, :] + size // 2


class ClassToken(nn.Module):
    """A learned token before all others, with a position of its own."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 1, dim))
        self.position = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) → (B, 1 + N, C)."""
        token = (self.weight + self.position).expand(x.shape[0], -1, -1)
        return torch.cat([token, x], dim=1)


def resize_table(table: Tensor, hw: tuple[int, int], mode: str) -> Tensor:
    """(1, C, H, W) → (1, C, h, w)."""
    if known(table.shape[-2] == hw[0]) and known(table.shape[-1] == hw[1]):
        return table
    return F.interpolate(table, size=hw, mode=mode, align_corners=False)


def resize_loaded_table(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Before loading: fit a table of another size to the module's own."""
    key = prefix + 'weight'
    loaded, own = state_dict.get(key), module.get_parameter('weight')
    if loaded is not None and loaded.dim() == 4 and loaded.shape[1] == own.shape[1]:
        state_dict[key] = resize_table(loaded, (own.shape[2], own.shape[3]), module.mode)  # type: ignore[arg-type]
