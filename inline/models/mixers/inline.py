from torch import Tensor, nn

from inline.models.mixers.base import ALL_QUERIES, AttentionMixer, Part
from inline.models.mixers.heads import merge_heads
from inline.models.mixers.registry import register_mixer
from inline.ops import inline_attention, inline_attention_weights, local_residual
from inline.ops.kernels import check_kernel
from inline.ops.masking import masked_mean


@register_mixer('InLine')
class InLineMixer(AttentionMixer):
    """InLine attention and the local residual.

    Args:
        dim, num_heads, qkv_bias, window_size, shift, split_size, lepe: see :class:`AttentionMixer`.
        kernel: φ of the attention, see :data:`inline.ops.KERNELS`.
        residual: Whether to add the local residual.
        wrap: Whether shifted windows hold tokens of the opposite side of the map, as those that the
            released weights were trained with; else windows at the border are smaller.
        mean_before_norm: Whether the mean token that the residual's kernels are made from is taken of
            the whole map before the block's norm, as in CSwin, instead of each region after it.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool = True,
        window_size: int | None = None,
        shift: bool = False,
        split_size: int | None = None,
        lepe: bool = False,
        kernel: str = 'identity',
        residual: bool = True,
        wrap: bool = True,
        mean_before_norm: bool = False,
    ) -> None:
        super().__init__(dim, num_heads, qkv_bias, window_size, shift, split_size, lepe)
        self.kernel = check_kernel(kernel)
        self.residual = ResidualKernel(dim, num_heads) if residual else None
        self.wrap = wrap
        self.takes_unnormed = residual and mean_before_norm

    def attend(self, part: Part) -> Tensor:
        out = merge_heads(inline_attention(*part.heads(), kernel=self.kernel, key_mask=part.key_mask))
        if self.residual is None:
            return out
        kernels = self.residual(self._mean_tokens(part))[:, part.channels]
        return out + local_residual(part.v, kernels, part.regions.window, key_mask=part.key_mask)

    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = part.heads()
        return inline_attention_weights(q[:, :, queries], k, kernel=self.kernel, key_mask=part.key_mask)

    def _mean_tokens(self, part: Part) -> Tensor:
        """The mean token of each region, (b, C)."""
        if not self.takes_unnormed:
            return masked_mean(part.regions.cut(part.x), part.key_mask).squeeze(1)
        assert part.unnormed is not None
        return part.unnormed.mean(dim=1).repeat_interleave(part.regions.count, dim=0)


class ResidualKernel(nn.Module):
    """From a mean token, one 3×3 kernel per channel."""

    def __init__(self, dim: int, groups: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv1d(dim, dim, kernel_size=1, groups=groups)
        self.act = nn.GELU()
        self.fc2 = nn.Conv1d(dim, 9 * dim, kernel_size=1, groups=groups)

    def forward(self, mean_token: Tensor) -> Tensor:
        """(B, C) → (B, C, 9)."""
        return self.fc2(self.act(self.fc1(mean_token.unsqueeze(-1)))).unflatten(1, (-1, 9)).squeeze(-1)
