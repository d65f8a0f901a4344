"""Spatial reduction of keys and values, as in PVT: the base class of the mixers that support it."""

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from inline.models.layers import PatchEmbed, is_plain, linear, map_to_tokens, tokens_to_map
from inline.models.mixers.base import AttentionInputs, AttentionMixer, MakeQK, MixerOptions
from inline.ops.symint import ceil_div
from inline.utils.arguments import check_range, checked
from inline.utils.errors import UserError

# Sanity limit: larger values are almost certainly typos.
MAX_REDUCTION = 64


class ReducedMixer(AttentionMixer):
    """Base class of mixers whose keys and values may come from a smaller map.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`.
        sr_ratio: PVT's spatial reduction: keys and values come from patches of sr_ratio × sr_ratio tokens.
    """

    @checked
    def __init__(
        self, dim: int, num_heads: int, *, sr_ratio: int = 1, **shared: Unpack[MixerOptions]
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        check_range('sr_ratio', sr_ratio, 1, MAX_REDUCTION)
        if sr_ratio > 1 and (self.window_size or self.split_size):
            raise UserError(f'sr_ratio {sr_ratio}: not supported with windows or stripes')
        self.sr_ratio = sr_ratio
        self.reduction = PatchEmbed(dim, dim, sr_ratio) if sr_ratio > 1 else None

    @property
    def supports_prefix(self) -> bool:
        return super().supports_prefix and self.reduction is None

    def project(self, x: Tensor, hw: tuple[int, int]) -> tuple[Tensor, MakeQK]:
        if self.reduction is None:
            return super().project(x, hw)
        # One qkv layer with and without reduction, so that the weights have the same names.
        dim = x.shape[-1]
        reduced, _ = self.reduction(tokens_to_map(x, hw))
        if is_plain(self.qkv, nn.Linear):
            q, kv = linear(self.qkv, x, slice(dim)), linear(self.qkv, reduced, slice(dim, None))
        else:
            q, kv = self.qkv(x)[..., :dim], self.qkv(reduced)[..., dim:]
        k, v = kv.chunk(2, dim=-1)
        return v, lambda: (q, k)

    def key_hw(self, inputs: AttentionInputs) -> tuple[int, int]:
        """Return height and width of the map of the keys."""
        return ceil_div(inputs.hw[0], self.sr_ratio), ceil_div(inputs.hw[1], self.sr_ratio)

    def local_values(self, inputs: AttentionInputs) -> Tensor:
        if self.reduction is None:
            return super().local_values(inputs)
        maps = tokens_to_map(inputs.v, self.key_hw(inputs))
        return map_to_tokens(F.interpolate(maps, size=inputs.hw, mode='bilinear', align_corners=False))
