import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from inline.arguments import check_range
from inline.models.layers import check_conv_size, depthwise
from inline.models.limits import MAX_POWER
from inline.models.mixers.base import ALL_QUERIES, AttentionMixer, MixerOptions, Part
from inline.models.mixers.heads import merge_heads
from inline.models.mixers.registry import register_mixer
from inline.ops import flatten_attention, flatten_attention_weights
from inline.ops.masking import zero_masked


@register_mixer('FLatten')
class FLattenMixer(AttentionMixer):
    """FLatten's focused linear attention, and its depthwise convolution of the values.

    See :mod:`inline.ops.flatten_attention`. The convolution has one kernel for each channel of a head,
    which all heads share, as in the authors' models.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`.
        power: How sharply queries and keys are focused.
        conv_size: Side of the convolution's kernels, odd; None for no convolution.
    """

    normalisation = 'division'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        power: int = 3,
        conv_size: int | None = 5,
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        check_range('power', power, 1, MAX_POWER)
        check_conv_size(conv_size)
        self.power = power
        self.scale = nn.Parameter(torch.zeros(dim))
        head_dim = dim // num_heads
        self.conv = nn.Conv2d(head_dim, head_dim, conv_size, groups=head_dim) if conv_size else None

    def attend(self, part: Part) -> Tensor:
        out = flatten_attention(
            *part.heads(), power=self.power, scale=self._scale(part), key_mask=part.key_mask
        )
        return merge_heads(out)

    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = part.heads()
        return flatten_attention_weights(
            q[:, :, queries], k, power=self.power, scale=self._scale(part), key_mask=part.key_mask
        )

    def local(self, part: Part) -> Tensor | None:
        if self.conv is None:
            return None
        weight = self.conv.weight.repeat(part.num_heads, 1, 1, 1)
        bias = None if self.conv.bias is None else self.conv.bias.repeat(part.num_heads)
        return depthwise(zero_masked(part.v, part.key_mask), part.hw, weight, bias)

    def _scale(self, part: Part) -> Tensor:
        """Positive divisors of the part's channels, (heads, d)."""
        return F.softplus(self.scale)[part.channels].unflatten(0, (part.num_heads, -1))
