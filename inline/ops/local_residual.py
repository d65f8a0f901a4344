"""The local residual: each token adds a weighted sum of the values in its 3×3 neighbourhood.

    r_i = Σ_{t=1..9} w_t · v_{n_t(i)}

with one 3×3 kernel w per image and channel, row by row, and zeros beyond the border. Prefix tokens
(a class token) have no place on the map: they give nothing and get nothing, and are left out of the result.

Reference: the local attention residual of "Bridging the Divide: Reconsidering Softmax and Linear Attention",
NeurIPS 2024, arXiv 2412.06590.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.masking import zero_masked
from inline.ops.open_sizes import is_open
from inline.ops.places import count_prefix


def local_residual(
    v: Tensor,
    weight: Tensor,
    hw: tuple[int, int],
    *,
    bias: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """A depthwise convolution with a kernel of its own for every image.

    Args:
        v: Values (B, P + H·W, C): P prefix tokens, then the map row by row.
        weight: Kernels (B, C, 9).
        hw: Height and width of the map.
        bias: Added to each token of the map, (C); None for nothing.
        key_mask: (B, P + H·W), True for the tokens that take part; the others count as zero.

    Returns:
        (B, H·W, C).
    """
    prefix = count_prefix(v.shape[1], hw)
    batch, _, channels = v.shape
    tokens = zero_masked(v, key_mask)[:, prefix:]
    if is_open(batch):
        # The groups of a convolution cannot be left open in ONNX.
        return _sum_of_neighbours(tokens, weight, hw, bias)
    # All images side by side as channels of one map: the kernels then are one grouped convolution.
    kernels = weight.reshape(batch * channels, 1, 3, 3)
    biases = None if bias is None else bias.repeat(batch)
    if v.device.type == 'cpu':
        # Channels last is the layout that tokens have already, and that oneDNN is fastest in.
        maps = tokens.transpose(0, 1).reshape(1, *hw, batch * channels).permute(0, 3, 1, 2)
        out = F.conv2d(maps, kernels, biases, padding=1, groups=batch * channels)
        return out.permute(0, 2, 3, 1).reshape(-1, batch, channels).transpose(0, 1)
    # torch's own depthwise kernel for GPUs wants channels first.
    maps = tokens.transpose(1, 2).reshape(1, batch * channels, *hw)
    out = F.conv2d(maps, kernels, biases, padding=1, groups=batch * channels)
    return out.reshape(batch, channels, -1).transpose(1, 2)


def _sum_of_neighbours(v: Tensor, weight: Tensor, hw: tuple[int, int], bias: Tensor | None) -> Tensor:
    """The residual of tokens without prefix, as a sum over the whole map moved by each of nine steps."""
    height, width = hw
    padded = F.pad(v.unflatten(1, hw), (0, 0, 1, 1, 1, 1))
    total = torch.zeros_like(v).unflatten(1, hw) if bias is None else bias
    for t in range(9):
        moved = padded[:, t // 3 : t // 3 + height, t % 3 : t % 3 + width]
        total = total + moved * weight[:, None, None, :, t]
    return total.flatten(1, 2)


def local_residual_naive(
    v: Tensor,
    weight: Tensor,
    hw: tuple[int, int],
    *,
    bias: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The twin of :func:`local_residual` that gathers the nine neighbours one by one."""
    prefix = count_prefix(v.shape[1], hw)
    height, width = hw
    tokens = zero_masked(v, key_mask)[:, prefix:]
    rows = []
    for y in range(height):
        for x in range(width):
            total = torch.zeros_like(v[:, 0]) if bias is None else bias.expand_as(v[:, 0])
            for t in range(9):
                ny, nx = y + t // 3 - 1, x + t % 3 - 1
                if 0 <= ny < height and 0 <= nx < width:
                    total = total + weight[:, :, t] * tokens[:, ny * width + nx]
            rows.append(total)
    return torch.stack(rows, dim=1)
