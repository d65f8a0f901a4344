"""Patch embedding and downsampling. Each returns ceil(H / stride) × ceil(W / stride) tokens.

Also conversions between tokens (B, H·W, C) and maps (B, C, H, W).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers.fast_paths import is_plain
from inline.models.layers.fused_linear import linear
from inline.models.layers.norm import LayerNorm
from inline.ops.local_residual import compiles_any_size
from inline.ops.symint import ceil_div, new_size, statically_true
from inline.utils.arguments import check_range

# Sanity limit: larger values are almost certainly typos and would run out of memory.
MAX_WIDTH = 2**14


class ConvEmbed(nn.Module):
    """Embed patches with a strided convolution and an optional LayerNorm; CSwin's patches overlap.

    A size that is not a multiple of the stride is zero-padded at the bottom and the right.
    """

    def __init__(
        self, in_channels: int, dim: int, kernel_size: int, stride: int, padding: int, norm: bool = True
    ) -> None:
        super().__init__()
        check_range('in_channels', in_channels, 1, MAX_WIDTH)
        self.stride = stride
        self.proj = nn.Conv2d(in_channels, dim, kernel_size, stride, padding)
        self.norm = LayerNorm(dim) if norm else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, C, H, W) → tokens (B, h·w, dim) and (h, w)."""
        if x.device.type == 'cpu' and compiles_any_size(x) and is_plain(self.proj, nn.Conv2d):
            x = _compiled_convolution(x, self.proj)
        else:
            x = self.proj(pad_to_multiple(x, self.stride))
        return self.norm(map_to_tokens(x)), (x.shape[-2], x.shape[-1])


class PatchEmbed(ConvEmbed):
    """Project non-overlapping patches to tokens."""

    def __init__(self, in_channels: int, dim: int, patch_size: int, norm: bool = True) -> None:
        super().__init__(in_channels, dim, patch_size, patch_size, padding=0, norm=norm)


class PatchMerging(nn.Module):
    """Swin's downsampling: concatenate each 2×2 patch of tokens, normalise and project."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        self.norm = LayerNorm(4 * in_channels)
        self.reduction = nn.Linear(4 * in_channels, dim, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, C, H, W) → tokens (B, h·w, dim) and (h, w)."""
        merge = torch.ops.inline.merge_patches if compiles_any_size(x) else _merge_patches
        x = merge(x)
        return linear(self.reduction, self.norm(x.flatten(1, 2))), (x.shape[1], x.shape[2])


def _merge_patches(x: Tensor) -> Tensor:
    """(B, C, H, W) → (B, h, w, 4·C), zero-padded to even sides."""
    x = pad_to_multiple(x, 2)
    # As tokens, whose transposes runtimes can remove from an exported program.
    x = map_to_tokens(x).unflatten(1, x.shape[2:])
    # (B, h, row, w, column, C) → (B, h, w, column, row, C): Swin concatenates a patch column by column.
    return x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3)


def _unmerge_patches(merged: Tensor, height: int, width: int) -> Tensor:
    """(B, h, w, 4·C) → (B, C, height, width), without the padding of :func:`_merge_patches`."""
    x = merged.unflatten(3, (2, 2, -1)).permute(0, 5, 1, 4, 2, 3)
    return x.flatten(4).flatten(2, 3)[:, :, :height, :width]


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Zero-pad a map at the bottom and the right until both sides are a multiple."""
    height, width = x.shape[-2:]
    if statically_true(height % multiple == 0) and statically_true(width % multiple == 0):
        return x
    bottom, right = (ceil_div(side, multiple) * multiple - side for side in (height, width))
    return F.pad(x, (0, right, 0, bottom))


def map_to_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) → (B, H·W, C)."""
    return x.flatten(2).transpose(1, 2)


def tokens_to_map(x: Tensor, hw: tuple[int, int]) -> Tensor:
    """(B, H·W, C) → (B, C, H, W)."""
    return x.transpose(1, 2).unflatten(2, hw)


# With symbolic sizes, torch.compile calls downsampling through operators: the height and width of the output
# become new symbols, which keeps the expressions of later stages short. Also, inductor would give the
# padded image, which the backward pass needs, the strides of the first batch.


def _compiled_convolution(x: Tensor, conv: nn.Conv2d) -> Tensor:
    stride, padding, bias = conv.stride[0], int(conv.padding[0]), conv.bias
    weight = conv.weight.to(x.dtype)
    bias = None if bias is None else bias.to(x.dtype)
    out: Tensor = torch.ops.inline.padded_convolution(x, weight, bias, stride, padding)
    return out.permute(0, 3, 1, 2)


torch.library.define(
    'inline::padded_convolution',
    '(Tensor x, Tensor weight, Tensor? bias, int stride, int padding) -> Tensor',
)
torch.library.define(
    'inline::padded_convolution_backward',
    '(Tensor grad, Tensor x, Tensor weight, int stride, int padding, bool needs_x=True) -> (Tensor, Tensor)',
)


@torch.library.impl('inline::padded_convolution', 'cpu')
def _convolution_cpu(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    out = F.conv2d(pad_to_multiple(x, stride), weight, bias, stride, padding)
    # (B, h, w, dim), the layout of tokens.
    return out.permute(0, 2, 3, 1).contiguous()


@torch.library.impl('inline::padded_convolution_backward', 'cpu')
def _convolution_backward_cpu(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, needs_x: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and the weight; that of x is empty if nobody needs it, as for images."""
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad.permute(0, 3, 1, 2),
        pad_to_multiple(x, stride),
        weight,
        None,
        stride=[stride, stride],
        padding=[padding, padding],
        dilation=[1, 1],
        transposed=False,
        output_padding=[0, 0],
        groups=1,
        output_mask=[needs_x, True, False],
    )
    grad_x = grad_x[:, :, : x.shape[2], : x.shape[3]].contiguous() if needs_x else x.new_empty(0)
    return grad_x, grad_weight.contiguous()


@torch.library.register_fake('inline::padded_convolution')
def _(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:  # noqa: ARG001 (no effect on the shape)
    height, width = (new_size(ceil_div(side, stride)) for side in x.shape[2:])
    return x.new_empty(x.shape[0], height, width, weight.shape[0])


@torch.library.register_fake('inline::padded_convolution_backward')
def _(
    _grad: Tensor, x: Tensor, weight: Tensor, _stride: int, _padding: int, needs_x: bool = True
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape if needs_x else 0), weight.new_empty(weight.shape)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's signature)
    x, weight, _, *ctx.numbers = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs_x, _, needs_bias, *_ = ctx.needs_input_grad
    backward = torch.ops.inline.padded_convolution_backward
    grad_x, grad_weight = backward(grad, *ctx.saved_tensors, *ctx.numbers, needs_x)
    grad_bias = grad.sum(dim=(0, 1, 2)) if needs_bias else None
    return grad_x if needs_x else None, grad_weight, grad_bias, None, None


torch.library.register_autograd('inline::padded_convolution', _backward, setup_context=_save_inputs)


@torch.library.custom_op('inline::merge_patches', mutates_args=())
def _merge_op(x: Tensor) -> Tensor:
    return _merge_patches(x).contiguous()


@torch.library.custom_op('inline::unmerge_patches', mutates_args=())
def _unmerge_op(merged: Tensor, height: int, width: int) -> Tensor:
    return _unmerge_patches(merged, height, width).contiguous()


@_merge_op.register_fake
def _(x: Tensor) -> Tensor:
    batch, channels, *sides = x.shape
    height, width = (new_size(ceil_div(side, 2)) for side in sides)
    return x.new_empty(batch, height, width, 4 * channels)


@_unmerge_op.register_fake
def _(merged: Tensor, height: int, width: int) -> Tensor:
    return merged.new_empty(merged.shape[0], merged.shape[3] // 4, height, width)


def _save_size(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's signature)
    ctx.hw = inputs[0].shape[2:]


# Padding has no gradient.
_merge_op.register_autograd(lambda ctx, grad: _unmerge_op(grad, *ctx.hw), setup_context=_save_size)
