"""The softmax attention mixer: plain, with PVT's spatial reduction, in Swin's windows or CSwin's stripes."""

import torch
from torch import Tensor
from typing_extensions import Unpack

from inline.models.layers import RelativePositionBias, WindowPartition, returns_new_tensor
from inline.models.mixers.base import ALL_QUERIES, AttentionInputs, MixerOptions, merge_heads
from inline.models.mixers.reduction import ReducedMixer
from inline.models.mixers.registry import register_mixer
from inline.ops import softmax_attention, softmax_attention_weights
from inline.ops.tokens import zero_masked
from inline.utils.errors import UserError


@register_mixer('Softmax')
class SoftmaxMixer(ReducedMixer):
    """Softmax attention, plain as in DeiT or as in PVT, Swin or CSwin.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`. In shifted windows that wrap around, tokens
            from different sides of the border do not attend to each other.
        sr_ratio: PVT's spatial reduction: keys and values come from patches of sr_ratio × sr_ratio tokens.
        relative_position: Whether to add Swin's relative position bias.
    """

    is_linear = False
    normalization = 'division'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        sr_ratio: int = 1,
        relative_position: bool = False,
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, sr_ratio=sr_ratio, **shared)
        if self.reduction is not None and self.lepe is not None:
            raise UserError(f'sr_ratio {sr_ratio}: not supported with lepe')
        if relative_position and self.window_size is None:
            raise UserError('relative_position True: requires a window_size')
        self.position = (
            RelativePositionBias((self.window_size, self.window_size), num_heads)
            if relative_position and self.window_size is not None
            else None
        )

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        q, k, v = inputs.heads()
        if self.split_size is not None:
            # Stripes only mask padding, and every stripe contains a token of the map, so a key mask is
            # enough. It is smaller than an attention mask, whose strides torch.export cannot order.
            return merge_heads(softmax_attention(q, k, v, key_mask=inputs.key_mask))
        bias, mask = self._bias(inputs.windows, q), inputs.windows.attention_mask(q.device)
        if mask is None:
            return merge_heads(softmax_attention(q, k, v, bias=bias))
        k, v = zero_masked(k, inputs.key_mask), zero_masked(v, inputs.key_mask)
        q, k, v = (_windows_to_heads(t, mask.shape[0]) for t in (q, k, v))
        out = softmax_attention(q, k, v, bias=_mask_bias(bias, mask, q))
        return merge_heads(_heads_to_windows(out, inputs.num_heads))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        if self.split_size is not None:
            return softmax_attention_weights(q[:, :, queries], k, key_mask=inputs.key_mask)
        bias, mask = self._bias(inputs.windows, q), inputs.windows.attention_mask(q.device)
        if mask is None:
            bias = None if bias is None else bias[:, :, queries]
            return softmax_attention_weights(q[:, :, queries], k, bias=bias)
        q, k = (_windows_to_heads(t, mask.shape[0]) for t in (q, zero_masked(k, inputs.key_mask)))
        bias = _mask_bias(bias, mask, q)[:, :, queries]
        return _heads_to_windows(softmax_attention_weights(q[:, :, queries], k, bias=bias), inputs.num_heads)

    def _bias(self, windows: WindowPartition, q: Tensor) -> Tensor | None:
        """Return the relative position bias (1, heads, N, N) of all windows; None if there is none."""
        return None if self.position is None else self.position(windows.window).to(q.dtype)[None]


# A mask differs by window but not by image, so windows are moved to the head axis and back.
def _mask_bias(bias: Tensor | None, mask: Tensor, q: Tensor) -> Tensor:
    """Return (1, count·heads, N, N) for q (B, count·heads, N, d): −∞ where mask (count, N, N) is False."""
    shared = q.new_zeros(1, q.shape[1] // mask.shape[0], 1, 1) if bias is None else bias
    return torch.where(mask[:, None], shared, float('-inf')).flatten(0, 1)[None]


def _windows_to_heads(x: Tensor, count: int) -> Tensor:
    """(B·count, heads, N, d) → (B, count·heads, N, d)."""
    return x.unflatten(0, (x.shape[0] // count, count)).flatten(1, 2)


def _heads_to_windows(x: Tensor, heads: int) -> Tensor:
    """(B, count·heads, N, d) → (B·count, heads, N, d)."""
    return x.unflatten(1, (x.shape[1] // heads, heads)).flatten(0, 1)
