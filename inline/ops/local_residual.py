"""The local residual: each token adds a weighted sum of the values in its 3×3 neighbourhood.

    r_i = Σ_{t=1..9} w_t · v_{n_t(i)}

with one 3×3 kernel w per image and channel in row-major order, and zero padding at the border. Prefix
tokens (such as a class token) have no neighbours: they are ignored and not in the result.

Reference: the local attention residual of "Bridging the Divide: Reconsidering Softmax and Linear Attention",
NeurIPS 2024, arXiv 2412.06590.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.backend import uses_triton
from inline.ops.symint import is_symbolic, is_tracing, statically_true
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
    if is_tracing() or isinstance(batch, torch.SymInt):
        if compiles_any_size(tokens):
            return depthwise_convolution(tokens, weight, hw, bias)
        if is_symbolic(batch):
            # ONNX does not support a symbolic number of convolution groups.
            return _shifted_sum(tokens, weight, hw, bias)
    if v.is_cpu:
        return _depthwise_cpu(tokens, weight, bias, *hw)
    # Folding the batch into the channels turns the per-image kernels into one grouped convolution.
    kernels = weight.reshape(batch * channels, 1, 3, 3)
    biases = None if bias is None else bias.repeat(batch)
    # PyTorch's depthwise CUDA kernel expects channels first.
    maps = tokens.transpose(1, 2).reshape(1, batch * channels, *hw)
    out = F.conv2d(maps, kernels, biases, padding=1, groups=batch * channels)
    return out.reshape(batch, channels, -1).transpose(1, 2)


# With symbolic sizes, torch.compile calls the convolution through an operator of known output shape. inductor
# would make the batch size, and with it the number of groups, a constant of the program, and its code for a
# sum of shifted maps of symbolic sizes is slow on a CPU.


def compiles_any_size(x: Tensor) -> bool:
    """Return whether torch.compile traces this tensor with a symbolic size."""
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    return is_symbolic(*x.shape)


def depthwise_convolution(
    tokens: Tensor, weight: Tensor, hw: tuple[int, int], bias: Tensor | None = None
) -> Tensor:
    """Convolve the maps of tokens (B, H·W, C) with kernels (B or 1, C, k²) for odd k; bias (C)."""
    weight, bias = weight.to(tokens.dtype), None if bias is None else bias.to(tokens.dtype)
    if tokens.device.type != 'cpu':
        return _shifted_sum(tokens, weight, hw, bias)
    out: Tensor = torch.ops.inline.depthwise_convolution(tokens, weight, bias, *hw)
    return out


torch.library.define(
    'inline::depthwise_convolution',
    '(Tensor tokens, Tensor weight, Tensor? bias, SymInt height, SymInt width) -> Tensor',
)
torch.library.define(
    'inline::depthwise_convolution_backward',
    '(Tensor grad, Tensor tokens, Tensor weight, SymInt height, SymInt width) -> (Tensor, Tensor)',
)


def _depthwise_cpu(tokens: Tensor, weight: Tensor, bias: Tensor | None, height: int, width: int) -> Tensor:
    maps, kernels, padding = _to_maps(tokens, weight, height, width)
    if bias is not None and weight.shape[0] > 1:
        bias = bias.repeat(weight.shape[0])
    out = F.conv2d(maps, kernels, bias, padding=padding, groups=kernels.shape[0])
    return _to_tokens(out, tokens.shape[0], height)


torch.library.impl('inline::depthwise_convolution', 'cpu', _depthwise_cpu)


@torch.library.impl('inline::depthwise_convolution_backward', 'cpu')
def _depthwise_backward_cpu(
    grad: Tensor, tokens: Tensor, weight: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    maps, kernels, padding = _to_maps(tokens, weight, height, width)
    grad_out = _to_maps(grad, weight, height, width)[0]
    grad_maps, grad_kernels, _ = torch.ops.aten.convolution_backward(
        grad_out,
        maps,
        kernels,
        None,
        stride=[1, 1],
        padding=[padding, padding],
        dilation=[1, 1],
        transposed=False,
        output_padding=[0, 0],
        groups=len(kernels),
        output_mask=[True, True, False],
    )
    return _to_tokens(grad_maps, tokens.shape[0], height), grad_kernels.reshape(weight.shape)


def _to_maps(tokens: Tensor, weight: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, int]:
    """Return maps, kernels (groups, 1, k, k) and the padding of an equivalent grouped convolution.

    Maps are (B, C, H, W) if all images share their kernels; kernels of each image become those of one image
    with B·C channels. Tokens are already in channels-last layout, which is the fastest for oneDNN.
    """
    side, sets = math.isqrt(weight.shape[2]), weight.shape[0]
    images = tokens.shape[0] // sets
    maps = (tokens if sets == 1 else tokens.transpose(0, 1)).reshape(images, height, width, -1)
    if statically_true(height < side):
        # oneDNN's backward pass is up to 100 times as slow on maps with fewer rows than the kernel.
        maps = F.pad(maps, (0, 0, 0, 0, 0, side - height))
    return maps.permute(0, 3, 1, 2), weight.reshape(-1, 1, side, side), side // 2


def _to_tokens(maps: Tensor, batch: int, height: int) -> Tensor:
    """Return the tokens (B, H·W, C) of maps of :func:`_to_maps`, without the padding."""
    rows = maps.permute(0, 2, 3, 1)[:, :height]
    if maps.shape[0] == batch:
        return rows.flatten(1, 2).contiguous()
    return rows.reshape(-1, batch, maps.shape[1] // batch).transpose(0, 1)


@torch.library.register_fake('inline::depthwise_convolution')
def _(tokens: Tensor, weight: Tensor, bias: Tensor | None, height: int, width: int) -> Tensor:  # noqa: ARG001 (no effect on the shape)
    return _empty_tokens(tokens, weight)


@torch.library.register_fake('inline::depthwise_convolution_backward')
def _(grad: Tensor, tokens: Tensor, weight: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return _empty_tokens(tokens, weight), weight.new_empty(weight.shape)


def _empty_tokens(tokens: Tensor, weight: Tensor) -> Tensor:
    """Return empty tokens of the same shape, with the strides of :func:`_to_tokens`."""
    batch, count, channels = tokens.shape
    if statically_true(weight.shape[0] == 1):
        return tokens.new_empty(batch, count, channels)
    return tokens.new_empty(count, batch, channels).transpose(0, 1)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's signature)
    tokens, weight, _, *ctx.hw = inputs
    ctx.save_for_backward(tokens, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grads = torch.ops.inline.depthwise_convolution_backward(grad, *ctx.saved_tensors, *ctx.hw)
    return (*grads, grad.sum(dim=(0, 1)) if ctx.needs_input_grad[2] else None, None, None)


torch.library.register_autograd('inline::depthwise_convolution', _backward, setup_context=_save_inputs)


def _shifted_sum(v: Tensor, weight: Tensor, hw: tuple[int, int], bias: Tensor | None) -> Tensor:
    """Convolve the maps of tokens with kernels (B, C, k²) as a weighted sum of k² shifted maps."""
    (height, width), side = hw, math.isqrt(weight.shape[2])
    padded = F.pad(v.unflatten(1, hw), (0, 0, *(side // 2,) * 4))
    total = torch.zeros_like(v).unflatten(1, hw) if bias is None else bias
    for t in range(side**2):
        shifted = padded[:, t // side : t // side + height, t % side : t % side + width]
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
