"""Depthwise convolutions of the values, the local terms of several mixers."""

import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers import is_plain, map_to_tokens, tokens_to_map
from inline.models.mixers.base import AttentionInputs
from inline.ops.tokens import zero_masked
from inline.utils.errors import UserError

# Sanity limit: larger values are almost certainly typos.
MAX_KERNEL_SIZE = 63


def make_depthwise(
    channels: int, conv_size: int | None, bias: bool = True, columns: bool = True
) -> nn.Conv2d | None:
    """Return a depthwise convolution that keeps the size of a map; None if ``conv_size`` is None.

    Without ``columns`` its kernel is conv_size × 1.
    """
    if conv_size is None:
        return None
    if not 1 <= conv_size <= MAX_KERNEL_SIZE or conv_size % 2 == 0:
        raise UserError(
            f'conv_size {conv_size}: must be odd and from 1 to {MAX_KERNEL_SIZE}, or None for no convolution'
        )
    kernel = (conv_size, conv_size if columns else 1)
    padding = (kernel[0] // 2, kernel[1] // 2)
    return nn.Conv2d(channels, channels, kernel, padding=padding, groups=channels, bias=bias)


def value_maps(inputs: AttentionInputs) -> Tensor:
    """Return the values of the map tokens as (b, c, h, w), zero at padding."""
    v = zero_masked(inputs.v, inputs.key_mask)
    return tokens_to_map(v[:, v.shape[1] - inputs.hw[0] * inputs.hw[1] :], inputs.hw)


def depthwise(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve each channel of maps (b, c, h, w) with weight (c, 1, rows, columns), to tokens (b, h·w, c)."""
    padding = (weight.shape[2] // 2, weight.shape[3] // 2)
    return map_to_tokens(F.conv2d(maps, weight, bias, padding=padding, groups=maps.shape[1]))


def convolve_heads(conv: nn.Conv2d, maps: Tensor, heads: int) -> Tensor:
    """Apply a convolution of d channels to every head of maps (b, heads·d, h, w), to (b, h·w, heads·d)."""
    if is_plain(conv, nn.Conv2d):
        bias = None if conv.bias is None else conv.bias.repeat(heads)
        return depthwise(maps, conv.weight.repeat(heads, 1, 1, 1), bias)
    # Heads share the kernels, so they are folded into the batch: (b·heads, d, h, w).
    out = conv(maps.unflatten(1, (heads, -1)).flatten(0, 1))
    return map_to_tokens(out.unflatten(0, (-1, heads)).flatten(1, 2))
