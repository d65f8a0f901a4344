"""Mixers whose output is multiplied by a gate: PolaFormer, RALA, MALA, Circulant Attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from inline.models.layers import PositionEmbedding, convolve_channels, map_to_tokens, returns_new_tensor
from inline.models.mixers.base import (
    ALL_QUERIES,
    AttentionInputs,
    AttentionMixer,
    MixerOptions,
    merge_heads,
    split_heads,
)
from inline.models.mixers.convolutions import convolve_heads, make_depthwise, value_maps
from inline.models.mixers.reduction import ReducedMixer
from inline.models.mixers.registry import register_mixer
from inline.ops import (
    circulant_attention,
    circulant_attention_weights,
    mala_attention,
    mala_attention_weights,
    polaformer_attention,
    polaformer_attention_weights,
    rala_attention,
    rala_attention_weights,
)
from inline.ops.tokens import count_prefix
from inline.utils.arguments import check_range, checked
from inline.utils.errors import UserError

# Sanity limits: larger values are almost certainly typos.
MAX_POSITION_SIZE = 1024
MAX_ALPHA = 15


@register_mixer('PolaFormer')
class PolaFormerMixer(ReducedMixer):
    """PolaFormer's polarity-aware linear attention, convolution of the values and gate.

    See :mod:`inline.ops.polaformer_attention`. The output, with the convolution added, is multiplied by a
    projection of the tokens without activation. The convolution has one kernel per channel of a head, shared
    by all heads. The authors' positional encoding of the keys has the size of the map; here it is
    interpolated to that size. Prefix tokens have no position on the map, and nothing is added to their keys.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`. The channels of a head must be an even number.
        alpha: The exponents are learned between 1 and 1 + alpha.
        conv_size: Kernel size of the convolution, odd; None for no convolution.
        position_size: Rows and columns of the positional encoding; None for none.
        gate: Whether to multiply the output by the gate.
        sr_ratio: see :class:`inline.models.mixers.reduction.ReducedMixer`. As in the authors' code the
            values are stretched to the number of queries as a sequence before the convolution.
    """

    permutation_equivariant = False
    normalization = 'division'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        alpha: float = 4,
        conv_size: int | None = 5,
        position_size: int | None = 14,
        gate: bool = True,
        sr_ratio: int = 1,
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, sr_ratio=sr_ratio, **shared)
        check_range('alpha', alpha, 0, MAX_ALPHA)
        if dim // num_heads % 2:
            raise UserError(f'num_heads {num_heads}: {dim // num_heads} channels per head, must be even')
        if position_size is not None:
            check_range('position_size', position_size, 1, MAX_POSITION_SIZE, ', or None for no position')
        self.alpha = alpha
        self.power = nn.Parameter(torch.zeros(dim))
        self.scale = nn.Parameter(torch.zeros(dim))
        self.conv = make_depthwise(dim // num_heads, conv_size)
        self.position = (
            None if position_size is None else PositionEmbedding(dim, (position_size, position_size))
        )
        self.gate = nn.Linear(dim, dim) if gate else None

    @property
    def weight_heads(self) -> int:
        """Two per head: weights of equal sign for one half of the values, of opposite sign for the other."""
        return 2 * self.num_heads

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        heads = inputs.num_heads // 2
        q, k, power, scale = self._operands(inputs)
        v = split_heads(inputs.v, heads)
        return merge_heads(polaformer_attention(q, k, v, power, scale=scale, key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, power, scale = self._operands(inputs)
        return polaformer_attention_weights(q[:, :, queries], k, power, scale=scale, key_mask=inputs.key_mask)

    def local(self, inputs: AttentionInputs) -> Tensor | None:
        if self.conv is None:
            return None
        if self.reduction is None:
            return convolve_heads(self.conv, value_maps(inputs), inputs.num_heads // 2)
        tokens = inputs.hw[0] * inputs.hw[1]
        sequence = F.interpolate(inputs.v.transpose(1, 2), size=tokens, mode='linear', align_corners=False)
        return convolve_heads(self.conv, sequence.unflatten(2, inputs.hw), inputs.num_heads // 2)

    def _operands(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries and keys (b, heads, n, d), exponents and divisors (heads, d)."""
        heads, k = inputs.num_heads // 2, inputs.k
        if self.position is not None:
            key_hw = self.key_hw(inputs)
            position = map_to_tokens(self.position.table(key_hw)[:, inputs.channels]).to(k.dtype)
            k = k + F.pad(position, (0, 0, count_prefix(k.shape[1], key_hw), 0))
        power, scale = 1 + self.alpha * torch.sigmoid(self.power), F.softplus(self.scale)
        power, scale = (t[inputs.channels].unflatten(0, (heads, -1)) for t in (power, scale))
        return split_heads(inputs.q, heads), split_heads(k, heads), power, scale


class ConvolvedGatedMixer(AttentionMixer):
    """Base class of RALA and MALA: a convolution of the values, and a gate without activation.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`.
        conv_size: Kernel size of the depthwise convolution, odd; None for no convolution.
        gate: Whether to multiply the output by a projection of the tokens.
    """

    permutation_equivariant = False

    @checked
    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        conv_size: int | None = 5,
        gate: bool = True,
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        self.conv = make_depthwise(dim, conv_size)
        self.gate = nn.Linear(dim, dim) if gate else None

    def local(self, inputs: AttentionInputs) -> Tensor | None:
        return (
            None if self.conv is None else convolve_channels(self.conv, value_maps(inputs), inputs.channels)
        )


@register_mixer('RALA')
class RALAMixer(ConvolvedGatedMixer):
    """RALA's rank-augmented linear attention, convolution and gate, see :mod:`inline.ops.rala_attention`.

    With windows or stripes, the mean query and the importance of keys are those of a window.
    """

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(rala_attention(*inputs.heads(), inputs.hw, key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        return rala_attention_weights(q, k, inputs.hw, queries=queries, key_mask=inputs.key_mask)


@register_mixer('MALA')
class MALAMixer(ConvolvedGatedMixer):
    """MALA's magnitude-aware linear attention, convolution and gate, see :mod:`inline.ops.mala_attention`."""

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(mala_attention(*inputs.heads(), inputs.hw, key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        return mala_attention_weights(q, k, inputs.hw, queries=queries, key_mask=inputs.key_mask)


@register_mixer('Circulant')
class CirculantMixer(AttentionMixer):
    """Circulant Attention and its gate with SiLU, see :mod:`inline.ops.circulant_attention`.

    Every channel has its own weights, so ``num_heads`` matters for prefix tokens only. The cost is
    O(N log N). With windows or stripes, each window is a torus.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`; qkv_bias defaults to False, as in the authors'
            models.
        gate: Whether to multiply the output by the gate.
    """

    permutation_equivariant = False

    def __init__(
        self, dim: int, num_heads: int, *, gate: bool = True, **shared: Unpack[MixerOptions]
    ) -> None:
        shared.setdefault('qkv_bias', False)
        super().__init__(dim, num_heads, **shared)
        self.head_dim = dim // num_heads
        self.gate = nn.Sequential(nn.Linear(dim, dim), nn.SiLU()) if gate else None

    @property
    def weight_heads(self) -> int:
        """One per channel."""
        return self.num_heads * self.head_dim

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        q, k, v = (split_heads(x, inputs.num_heads // self.head_dim) for x in (inputs.q, inputs.k, inputs.v))
        return merge_heads(circulant_attention(q, k, v, inputs.hw, key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k = (split_heads(x, inputs.num_heads // self.head_dim) for x in (inputs.q, inputs.k))
        return circulant_attention_weights(q, k, inputs.hw, queries=queries, key_mask=inputs.key_mask)
