"""MHLA's token-level multi-head linear attention (:mod:`inline.ops.mhla_attention`)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from inline.models.layers import convolve_channels, returns_new_tensor
from inline.models.mixers.base import (
    ALL_QUERIES,
    AttentionInputs,
    AttentionMixer,
    MakeQK,
    MixerOptions,
    merge_heads,
)
from inline.models.mixers.convolutions import make_depthwise, value_maps
from inline.models.mixers.registry import register_mixer
from inline.ops import mhla_attention, mhla_attention_weights
from inline.ops.mhla_attention import TRANSFORMS, initial_mixing
from inline.ops.tokens import full_precision
from inline.utils.arguments import check_choice, check_range

# Sanity limit: the mixing matrix has grid⁴ entries.
MAX_GRID = 32


@register_mixer('MHLA')
class MHLAMixer(AttentionMixer):
    """MHLA's attention over a grid of blocks, and its depthwise convolution of the values.

    See :mod:`inline.ops.mhla_attention`, also for maps that the grid does not divide. Queries and keys are
    divided by their root mean square over all C channels and multiplied by a learned weight per channel.
    The LayerNorm that the authors have inside of their attention module is the norm of the block here. With
    windows or stripes, each window has a grid of its own, with the same mixing matrix.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`; qkv_bias defaults to False, as in the authors'
            models.
        grid: Blocks per side of the map.
        transform: Initial mixing matrix, a name of :data:`inline.ops.mhla_attention.TRANSFORMS`.
        conv_size: Kernel size of the convolution, odd; None for no convolution.
    """

    permutation_equivariant = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        grid: int = 4,
        transform: str = 'linear',
        conv_size: int | None = 5,
        **shared: Unpack[MixerOptions],
    ) -> None:
        shared.setdefault('qkv_bias', False)
        super().__init__(dim, num_heads, **shared)
        check_range('grid', grid, 1, MAX_GRID)
        check_choice('unknown transform', transform, TRANSFORMS)
        self.q_norm = nn.Parameter(torch.ones(dim))
        self.k_norm = nn.Parameter(torch.ones(dim))
        self.mixing = nn.Parameter(initial_mixing(grid, transform).to(torch.get_default_dtype()))
        self.conv = make_depthwise(dim, conv_size)

    def project(self, x: Tensor, hw: tuple[int, int]) -> tuple[Tensor, MakeQK]:
        v, make_qk = super().project(x, hw)

        def make_normalized() -> tuple[Tensor, Tensor]:
            q, k = make_qk()
            return _rms_norm(q, self.q_norm), _rms_norm(k, self.k_norm)

        return v, make_normalized

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(mhla_attention(*inputs.heads(), inputs.hw, self.mixing, key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        return mhla_attention_weights(q, k, inputs.hw, self.mixing, queries=queries, key_mask=inputs.key_mask)

    def local(self, inputs: AttentionInputs) -> Tensor | None:
        return (
            None if self.conv is None else convolve_channels(self.conv, value_maps(inputs), inputs.channels)
        )


@full_precision
def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Normalise x (…, C) by its root mean square; ε is the machine epsilon, as in the authors' code."""
    return F.rms_norm(x, weight.shape, weight)
