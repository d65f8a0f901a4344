"""TransNormer's mixers: NormAttention, and DiagAttention for the first half of the blocks."""

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from inline.models.layers import MAX_WIDTH, returns_new_tensor
from inline.models.mixers.base import (
    ALL_QUERIES,
    AttentionInputs,
    AttentionMixer,
    MixerOptions,
    merge_heads,
)
from inline.models.mixers.registry import register_mixer
from inline.ops import (
    diag_attention,
    diag_attention_weights,
    transnormer_attention,
    transnormer_attention_weights,
)
from inline.ops.transnormer_attention import RelativePosition, Variant, initial_angles
from inline.utils.arguments import check_range


@register_mixer('TransNormer')
class TransNormerMixer(AttentionMixer):
    """TransNormer's NormAttention with LRPE, see :mod:`inline.ops.transnormer_attention`.

    The published models have it in the second half of their blocks, and ``dict(type='DiagAttention')`` in the
    first half. With stripes, the heads of each direction are normalised separately.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`.
        variant: 'T1' with the kernel elu(x), or 'T2' with elu(x) + 1.
        lrpe: Whether to encode relative positions. Weights of earlier versions were trained without.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        variant: Variant = 'T2',
        lrpe: bool = True,
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        self.variant: Variant = variant
        self.lrpe = LinearizedRelativePosition(dim // num_heads) if lrpe else None
        self.permutation_equivariant = not lrpe

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        out = transnormer_attention(
            *inputs.heads(),
            inputs.hw,
            variant=self.variant,
            position=self._position(),
            key_mask=inputs.key_mask,
        )
        return merge_heads(out)

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        return transnormer_attention_weights(
            *inputs.heads(),
            inputs.hw,
            variant=self.variant,
            position=self._position(),
            queries=queries,
            key_mask=inputs.key_mask,
        )

    def _position(self) -> RelativePosition | None:
        return None if self.lrpe is None else RelativePosition(self.lrpe.reflection, self.lrpe.theta)


class LinearizedRelativePosition(nn.Module):
    """Parameters of LRPE: learned angles, and the fixed unit vector of a reflection."""

    reflection: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(initial_angles(head_dim))
        self.register_buffer('reflection', nn.functional.normalize(torch.randn(head_dim), dim=0))


@register_mixer('DiagAttention')
class DiagAttentionMixer(AttentionMixer):
    """TransNormer's DiagAttention: softmax in blocks of tokens, see :mod:`inline.ops.diag_attention`.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`.
        block_size: Number of tokens of a block, in row-major order.
    """

    permutation_equivariant = False
    normalization = 'division'

    def __init__(
        self, dim: int, num_heads: int, *, block_size: int = 64, **shared: Unpack[MixerOptions]
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        check_range('block_size', block_size, 1, MAX_WIDTH)
        self.block_size = block_size

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(
            diag_attention(*inputs.heads(), block_size=self.block_size, key_mask=inputs.key_mask)
        )

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        return diag_attention_weights(
            q, k, block_size=self.block_size, queries=queries, key_mask=inputs.key_mask
        )
