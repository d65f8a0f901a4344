import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from inline.models.layers import Regions
from inline.models.mixers.base import ALL_QUERIES, AttentionMixer, MakeQK, MixerOptions, Part
from inline.models.mixers.heads import merge_heads
from inline.models.mixers.kernel import make_kernel
from inline.models.mixers.registry import register_mixer
from inline.ops import (
    inline_attention,
    inline_attention_from_tokens,
    inline_attention_weights,
    linear_attention,
    linear_attention_weights,
    local_residual,
)
from inline.ops.masking import masked_mean
from inline.ops.open_sizes import expected


@register_mixer('InLine')
class InLineMixer(AttentionMixer):
    """InLine attention and the local residual; each can be switched off.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`. Shifted windows wrap around by default, as
            those that the released weights were trained with.
        kernel: φ, a name of :data:`inline.ops.KERNELS` or affine_relu, see :class:`AffineReLU`.
        injective: Whether to normalise by subtraction; else by division, as plain linear attention does.
        residual: Whether to add the local residual.
        mean_before_norm: Whether the mean token that the residual's kernels are made from is taken of
            the whole map before the block's norm, as in CSwin, instead of each region after it.
    """

    # From so many tokens for each channel on, attention from the tokens themselves is faster than through
    # queries and keys. Measured on a CPU, see docs/speed.md; the FLOPs of both are equal at 1.
    tokens_per_channel = 1.5

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        kernel: str = 'identity',
        injective: bool = True,
        residual: bool = True,
        mean_before_norm: bool = False,
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        self.kernel = make_kernel(kernel, dim // num_heads)
        self.injective = injective
        self.normalisation = 'subtraction' if injective else 'division'
        self.residual = ResidualKernel(dim, num_heads) if residual else None
        self.takes_unnormed = residual and mean_before_norm

    def project(self, x: Tensor, hw: tuple[int, int]) -> tuple[Tensor, MakeQK]:
        if not self._reads_tokens(x, self.regions(x, hw)[0]):
            return super().project(x, hw)
        dim, weight, bias = x.shape[-1], self.qkv.weight, self.qkv.bias
        v = F.linear(x, weight[2 * dim :], None if bias is None else bias[2 * dim :])
        return v, lambda: self.qkv(x)[..., : 2 * dim].chunk(2, dim=-1)

    def attend(self, part: Part) -> Tensor:
        if part.queries_of_x and self._reads_tokens(part.x, part.regions):
            w_q, w_k, _ = self.qkv.weight.chunk(3)
            return inline_attention_from_tokens(
                part.tokens,
                part.v,
                w_q[part.channels],
                w_k[part.channels],
                None if self.qkv.bias is None else self.qkv.bias[part.channels],
                num_heads=part.num_heads,
            )
        op = inline_attention if self.injective else linear_attention
        return merge_heads(op(*part.heads(), kernel=self.kernel, key_mask=part.key_mask))

    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = part.heads()
        op = inline_attention_weights if self.injective else linear_attention_weights
        return op(q[:, :, queries], k, kernel=self.kernel, key_mask=part.key_mask)

    def local(self, part: Part) -> Tensor | None:
        if self.residual is None:
            return None
        kernels = self.residual(self._mean_tokens(part))[:, part.channels]
        return local_residual(part.v, kernels, part.hw, key_mask=part.key_mask)

    def local_terms(self, part: Part) -> Iterator[Tensor]:
        if self.residual is None or self.lepe is None:
            yield from super().local_terms(part)
            return
        # Both are 3×3 kernels on the same values, so one convolution serves both.
        kernels = self.residual(self._mean_tokens(part))[:, part.channels]
        conv = self.lepe.conv
        yield local_residual(
            part.v,
            kernels + conv.weight[part.channels].flatten(1),
            part.hw,
            bias=None if conv.bias is None else conv.bias[part.channels],
            key_mask=part.key_mask,
        )

    def _reads_tokens(self, x: Tensor, regions: Regions) -> bool:
        """Whether attention within these regions of x (B, P + H·W, C) is made without queries and keys."""
        if not self.injective or self.kernel != 'identity' or regions.is_padded:
            return False
        return expected(math.prod(regions.window)) >= self.tokens_per_channel * x.shape[-1]

    def _mean_tokens(self, part: Part) -> Tensor:
        """The mean token of each region, (b, C)."""
        if not self.takes_unnormed:
            return masked_mean(part.tokens, part.key_mask).squeeze(1)
        assert part.unnormed is not None
        return part.unnormed.mean(dim=1).repeat_interleave(part.regions.count, dim=0)


class ResidualKernel(nn.Module):
    """From a mean token, one 3×3 kernel per channel."""

    def __init__(self, dim: int, groups: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv1d(dim, dim, kernel_size=1, groups=groups)
        self.fc2 = nn.Conv1d(dim, 9 * dim, kernel_size=1, groups=groups)

    def forward(self, mean_token: Tensor) -> Tensor:
        """(B, C) → (B, C, 9)."""
        own = mean_token.view(-1, self.fc1.groups, mean_token.shape[1] // self.fc1.groups).transpose(0, 1)
        kernels = _grouped(self.fc2, F.gelu(_grouped(self.fc1, own)))
        return kernels.transpose(0, 1).reshape(*mean_token.shape, 9)


def _grouped(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """What the convolution makes of sequences of one place, (groups, B, in) → (groups, B, out).

    As one product a group: for maps so small a convolution spends its time on getting ready.
    """
    assert conv.bias is not None
    weight = conv.weight.view(conv.groups, -1, x.shape[2]).transpose(1, 2)
    return torch.baddbmm(conv.bias.view(conv.groups, 1, -1), x, weight)
