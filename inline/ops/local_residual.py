"""The local residual: each token adds a weighted sum of the values in its 3×3 neighbourhood.

    r_i = Σ_{t=1..9} w_t · v_{n_t(i)}

with one 3×3 kernel w per image and channel in row-major order, and zero padding at the border. Prefix
tokens (such as a class token) have no neighbours: they are ignored and not in the result.

Reference: the local attention residual of "Bridging the Divide: Reconsidering Softmax and Linear Attention",
NeurIPS 2024, arXiv 2412.06590.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.backend import uses_triton
from inline.ops.symint import is_symbolic, statically_true
from inline.ops.tokens import count_prefix, zero_masked


def local_residual(
    v: Tensor,
    weight: Tensor,
    hw: tuple[int, int],
    *,
    bias: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute the local residual as a depthwise convolution with a different kernel per image.

    Args:
        v: Values (B, P + H·W, C): P prefix tokens, then the map in row-major order.
        weight: Kernels (B, C, 9).
        hw: Height and width of the map.
        bias: Added to each token of the map, (C); None for no bias.
        key_mask: (B, P + H·W), False for tokens to treat as zero, such as padding; None for none.

    Returns:
        (B, H·W, C).
    """
    if uses_triton(v.device):
        from inline.ops.triton_local_residual import local_residual_triton

        return local_residual_triton(v, weight, hw, bias=bias, key_mask=key_mask)
    prefix = count_prefix(v.shape[1], hw)
    batch, _, channels = v.shape
    tokens = zero_masked(v, key_mask)[:, prefix:]
    if is_symbolic(batch):
        # ONNX does not support a symbolic number of convolution groups.
        return _shifted_sum(tokens, weight, hw, bias)
    # Folding the batch into the channels turns the per-image kernels into one grouped convolution.
    kernels = weight.reshape(batch * channels, 1, 3, 3)
    biases = None if bias is None else bias.repeat(batch)
    if v.device.type == 'cpu':
        # Tokens are already in channels-last layout, which is the fastest for oneDNN.
        maps = tokens.transpose(0, 1).reshape(1, *hw, batch * channels)
        height = hw[0]
        if statically_true(height < 3):
            # oneDNN's backward pass is up to 100 times as slow on maps with fewer rows than the kernel.
            maps = F.pad(maps, (0, 0, 0, 0, 0, 3 - height))
        out = F.conv2d(maps.permute(0, 3, 1, 2), kernels, biases, padding=1, groups=batch * channels)
        return out.permute(0, 2, 3, 1)[:, :height].reshape(-1, batch, channels).transpose(0, 1)
    # PyTorch's depthwise CUDA kernel expects channels first.
    maps = tokens.transpose(1, 2).reshape(1, batch * channels, *hw)
    out = F.conv2d(maps, kernels, biases, padding=1, groups=batch * channels)
    return out.reshape(batch, channels, -1).transpose(1, 2)


def _shifted_sum(v: Tensor, weight: Tensor, hw: tuple[int, int], bias: Tensor | None) -> Tensor:
    """Compute the residual of tokens without prefix as a weighted sum of nine shifted maps."""
    height, width = hw
    padded = F.pad(v.unflatten(1, hw), (0, 0, 1, 1, 1, 1))
    total = torch.zeros_like(v).unflatten(1, hw) if bias is None else bias
    for t in range(9):
        shifted = padded[:, t // 3 : t // 3 + height, t % 3 : t % 3 + width]
        total = total + shifted * weight[:, None, None, :, t]
    return total.flatten(1, 2)


def local_residual_naive(
    v: Tensor,
    weight: Tensor,
    hw: tuple[int, int],
    *,
    bias: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Naive reference of :func:`local_residual` that gathers the nine neighbours one by one."""
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
