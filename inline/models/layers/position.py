from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers.maps import map_to_tokens


class PositionEmbedding(nn.Module):
    """One learned vector per place of a map; resized bilinearly to a map of another size.

    Weights of another size load too: they are resized to this table's.
    """

    def __init__(self, dim: int, hw: tuple[int, int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dim, *hw))
        self.register_load_state_dict_pre_hook(_resize_loaded)

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """Add the table to tokens (B, h·w, dim)."""
        return x + map_to_tokens(resize_table(self.weight, hw))


def resize_table(table: Tensor, hw: tuple[int, int]) -> Tensor:
    """(1, C, H, W) → (1, C, h, w)."""
    if table.shape[-2:] == hw:
        return table
    return F.interpolate(table, size=hw, mode='bilinear', align_corners=False)


def _resize_loaded(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    key = prefix + 'weight'
    loaded, own = state_dict.get(key), module.get_parameter('weight')
    if loaded is not None and loaded.dim() == 4 and loaded.shape[1] == own.shape[1]:
        state_dict[key] = resize_table(loaded, (own.shape[2], own.shape[3]))
