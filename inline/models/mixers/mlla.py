"""MLLA's mixers: its linear attention alone, and the gated mixer of its block."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from inline.models.layers import map_to_tokens, returns_new_tensor, tokens_to_map
from inline.models.mixers.base import (
    ALL_QUERIES,
    AttentionInputs,
    AttentionMixer,
    MakeQK,
    MixerOptions,
    merge_heads,
)
from inline.models.mixers.registry import register_mixer
from inline.ops import mlla_attention, mlla_attention_weights
from inline.ops.tokens import count_prefix


@register_mixer('MLLA')
class MLLAMixer(AttentionMixer):
    """MLLA's linear attention: rotary positions and LePE, see :mod:`inline.ops.mlla_attention`.

    The attention alone, with a value and an output projection as in every mixer. In the authors' code it has
    neither; they belong to the block around it, see :class:`MLLAGatedMixer`.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`; lepe defaults to True.
    """

    permutation_equivariant = False

    def __init__(self, dim: int, num_heads: int, **shared: Unpack[MixerOptions]) -> None:
        shared.setdefault('lepe', True)
        super().__init__(dim, num_heads, **shared)

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(mlla_attention(*inputs.heads(), inputs.hw, key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        return mlla_attention_weights(q, k, inputs.hw, queries=queries, key_mask=inputs.key_mask)


@register_mixer('MLLAGated')
class MLLAGatedMixer(MLLAMixer):
    """The mixer of MLLA's block: a convolution before the attention, and a gate after it.

    With a linear layer of its own at each W, and the attention of :class:`MLLAMixer` with LePE,

        u = SiLU(conv3×3(W_in x)),    q, k = W_qk u,    v = u
        out = W_out (attention(q, k, v) · SiLU(W_gate x))

    The convolution is depthwise and covers the whole map, also with windows. Prefix tokens (such as a class
    token) have no neighbours and skip it. The two convolutions of positions beside the mixer in the authors'
    block are not part of it, because all mixers share one block here.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`; lepe defaults to True.
    """

    def __init__(self, dim: int, num_heads: int, **shared: Unpack[MixerOptions]) -> None:
        super().__init__(dim, num_heads, **shared)
        self.in_proj = nn.Linear(dim, dim)
        self.conv = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim)
        # Queries and keys only: the values are not projected.
        self.qkv = nn.Linear(dim, 2 * dim, bias=self.qkv.bias is not None)
        self.gate = nn.Sequential(nn.Linear(dim, dim), nn.SiLU())

    def project(self, x: Tensor, hw: tuple[int, int]) -> tuple[Tensor, MakeQK]:
        u = self.in_proj(x)
        prefix, tokens = u.split([count_prefix(x.shape[1], hw), hw[0] * hw[1]], dim=1)
        tokens = map_to_tokens(self.conv(tokens_to_map(tokens, hw)))
        u = F.silu(torch.cat([prefix, tokens], dim=1))

        def make_qk() -> tuple[Tensor, Tensor]:
            q, k = self.qkv(u).chunk(2, dim=-1)
            return q, k

        return u, make_qk
