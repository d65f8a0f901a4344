import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Unpack

from inline.arguments import check_range
from inline.errors import UserError
from inline.models.layers import PatchEmbed, Regions, RelativePositionBias, tokens_to_map
from inline.models.limits import MAX_REDUCTION
from inline.models.mixers.base import ALL_QUERIES, AttentionMixer, MakeQK, MixerOptions, Part
from inline.models.mixers.heads import merge_heads
from inline.models.mixers.registry import register_mixer
from inline.ops import softmax_attention, softmax_attention_weights
from inline.ops.masking import zero_masked


@register_mixer('Softmax')
class SoftmaxMixer(AttentionMixer):
    """Softmax attention, as plain as in DeiT or as in PVT, Swin or CSwin.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`; a token never attends to one that was wrapped
            around another border than itself.
        sr_ratio: Spatial reduction of PVT: keys and values come from patches of sr_ratio × sr_ratio.
        relative_position: Whether to add Swin's bias for the offset between two tokens of a window.
    """

    linear_cost = False
    normalisation = 'division'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        sr_ratio: int = 1,
        relative_position: bool = False,
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        check_range('sr_ratio', sr_ratio, 1, MAX_REDUCTION)
        if sr_ratio > 1 and (self.window_size or self.split_size or self.lepe):
            raise UserError(f'sr_ratio {sr_ratio}: reduced keys go with the whole map only, without lepe')
        if relative_position and self.window_size is None:
            raise UserError('relative_position needs a window_size')
        self.reduction = PatchEmbed(dim, dim, sr_ratio) if sr_ratio > 1 else None
        self.position = (
            RelativePositionBias((self.window_size, self.window_size), num_heads)
            if relative_position and self.window_size is not None
            else None
        )

    @property
    def takes_prefix(self) -> bool:
        return super().takes_prefix and self.reduction is None

    def project(self, x: Tensor, hw: tuple[int, int]) -> tuple[Tensor, MakeQK]:
        if self.reduction is None:
            return super().project(x, hw)
        # One parameter serves both cases, so that weights do not depend on the reduction.
        dim = x.shape[-1]
        weight, bias = self.qkv.weight, self.qkv.bias
        q = F.linear(x, weight[:dim], None if bias is None else bias[:dim])
        reduced, _ = self.reduction(tokens_to_map(x, hw))
        kv = F.linear(reduced, weight[dim:], None if bias is None else bias[dim:])
        k, v = kv.chunk(2, dim=-1)
        return v, lambda: (q, k)

    def attend(self, part: Part) -> Tensor:
        q, k, v = part.heads()
        if self.split_size is not None and part.regions.is_open:
            # A mask of pairs has strides that torch.export cannot order for every size. In stripes only
            # padding is masked, and each holds a token of the map.
            return merge_heads(softmax_attention(q, k, v, key_mask=part.key_mask))
        bias = self._bias(part.regions, q)
        if bias is None:
            return merge_heads(softmax_attention(q, k, v))
        count, heads = part.regions.count, part.num_heads
        k, v = zero_masked(k, part.key_mask), zero_masked(v, part.key_mask)
        q, k, v = (_windows_to_heads(t, count) for t in (q, k, v))
        # Four axes: the fused kernel takes no bias of three.
        out = softmax_attention(q, k, v, bias=bias.flatten(0, 1)[None])
        return merge_heads(_heads_to_windows(out, heads))

    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = part.heads()
        bias = self._bias(part.regions, q)
        if bias is None:
            return softmax_attention_weights(q[:, :, queries], k)
        k = zero_masked(k, part.key_mask)
        q, k = (_windows_to_heads(t, part.regions.count) for t in (q, k))
        weights = softmax_attention_weights(q[:, :, queries], k, bias=bias.flatten(0, 1)[:, queries])
        return _heads_to_windows(weights, part.num_heads)

    def _bias(self, regions: Regions, q: Tensor) -> Tensor | None:
        """(count, heads, N, N), −∞ where a token must not attend to another; None if there is nothing."""
        allowed = regions.pairs(q.device)
        if self.position is None and allowed is None:
            return None
        tokens = regions.window[0] * regions.window[1]
        bias = q.new_zeros(1, tokens, tokens) if self.position is None else self.position(regions.window)
        bias = bias.to(q.dtype).expand(regions.count, q.shape[1], -1, -1)
        return bias if allowed is None else torch.where(allowed[:, None], bias, float('-inf'))


# The bias differs by window and head, not by image: windows go to the heads' axis and back.
def _windows_to_heads(x: Tensor, count: int) -> Tensor:
    """(B·count, heads, N, d) → (B, count·heads, N, d)."""
    return x.unflatten(0, (-1, count)).flatten(1, 2)


def _heads_to_windows(x: Tensor, heads: int) -> Tensor:
    """(B, count·heads, N, d) → (B·count, heads, N, d)."""
    return x.unflatten(1, (-1, heads)).flatten(0, 1)
