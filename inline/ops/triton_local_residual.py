"""The local residual (:mod:`inline.ops.local_residual`) as fused Triton kernels, forward and backward.

Tokens stay in channels-last layout, and prefix tokens, masked keys and the bias are handled in the kernel, so
that nothing is transposed, padded or copied. A program computes a block of tokens and channels of one image.
Products are summed in float32, or in float64 for float64 inputs.

The backward kernel loads each value and the output gradients of its neighbourhood once, for both

    dv_j = Σ_t w_t · g_{m_t(j)}        dw_t = Σ_j v_j · g_{m_t(j)}

where j is the t-th neighbour of token m_t(j). Sums over tokens are partial sums per block, added up by torch:
without atomic operations the result is deterministic.

Imported on first use, because it needs Triton; see :mod:`inline.ops.backend`.
"""

from typing import Any

import torch
from torch import Tensor

from inline.ops.tokens import count_prefix, is_autocast
from inline.utils.errors import UserError
from inline.utils.extras import install_command

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise UserError(f'Triton kernels need triton: {install_command("gpu")}') from error

# Read by Triton when a kernel is defined.
INTERPRETED = bool(triton.knobs.runtime.interpret)
# Size of a block and its warps. Not tuned: nobody has timed the kernels yet.
BLOCK_TOKENS, BLOCK_CHANNELS, NUM_WARPS = 64, 64, 8
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def local_residual_triton(
    v: Tensor,
    weight: Tensor,
    hw: tuple[int, int],
    *,
    bias: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute :func:`inline.ops.local_residual` with Triton. v, weight and bias may have different dtypes.

    The result has the dtype of v, or that of autocast.
    """
    if is_autocast(v.device) and v.dtype != torch.float64:
        v = v.to(torch.get_autocast_dtype(v.device.type))
    _check_inputs(v, weight, hw, bias, key_mask)
    # Weights of adjacent channels are adjacent, so that they are loaded as vectors.
    return _local_residual(v, weight.transpose(1, 2).contiguous(), bias, key_mask, *hw)


def _check_inputs(
    v: Tensor, weight: Tensor, hw: tuple[int, int], bias: Tensor | None, key_mask: Tensor | None
) -> None:
    """Raise for shapes, dtypes and devices with which a kernel would read wrong memory."""
    count_prefix(v.shape[1], hw)
    batch, tokens, channels = v.shape
    expected = (
        ('weight', weight, (batch, channels, 9)),
        ('bias', bias, (channels,)),
        ('key_mask', key_mask, (batch, tokens)),
    )
    for name, tensor, shape in expected:
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f'{name} has shape {tuple(tensor.shape)}, must be {shape} for v {tuple(v.shape)}'
            )
        if tensor.device != v.device:
            raise ValueError(f'{name} is on {tensor.device}, must be on {v.device} as v')
    for name, tensor in (('v', v), ('weight', weight), ('bias', bias)):
        if tensor is not None and tensor.dtype not in DTYPES:
            raise ValueError(f'{name} has dtype {tensor.dtype}, must be one of {", ".join(map(str, DTYPES))}')
    if key_mask is not None and key_mask.dtype != torch.bool:
        raise ValueError(f'key_mask has dtype {key_mask.dtype}, must be {torch.bool}')


# As custom operators, the kernels work in programs of torch.compile. Here weight is (B, 9, C).


@torch.library.custom_op('inline::local_residual', mutates_args=())
def _local_residual(
    v: Tensor, weight: Tensor, bias: Tensor | None, key_mask: Tensor | None, height: int, width: int
) -> Tensor:
    batch, tokens, channels = v.shape
    out = v.new_empty(batch, height * width, channels)
    if out.numel() == 0:
        return out
    v, weight = _dense_channels(v), weight.contiguous()
    blocks, block_channels = triton.cdiv(height * width, BLOCK_TOKENS), _block_channels(channels)
    with torch.cuda.device_of(v):
        local_residual_kernel[(batch * blocks, triton.cdiv(channels, block_channels))](
            v,
            weight,
            weight if bias is None else bias.contiguous(),
            weight if key_mask is None else _as_bytes(key_mask),
            out,
            v.stride(0),
            v.stride(1),
            height,
            width,
            channels,
            tokens - height * width,
            HAS_BIAS=bias is not None,
            HAS_MASK=key_mask is not None,
            SUM_DTYPE=_sum_dtype(v),
            BLOCK_N=BLOCK_TOKENS,
            BLOCK_C=block_channels,
            num_warps=NUM_WARPS,
        )
    return out


@_local_residual.register_fake
def _(v: Tensor, _weight: Tensor, _bias: Tensor, _key_mask: Tensor, height: int, width: int) -> Tensor:
    return v.new_empty(v.shape[0], height * width, v.shape[2])


@torch.library.custom_op('inline::local_residual_backward', mutates_args=())
def _local_residual_backward(
    grad: Tensor, v: Tensor, weight: Tensor, key_mask: Tensor | None, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of v (B, P + H·W, C), of weight (B, 9, C) and of a bias (C).

    The last two have the dtype of the sums.
    """
    batch, tokens, channels = v.shape
    prefix = tokens - height * width
    sum_dtype = torch.promote_types(v.dtype, torch.float32)
    grad_v = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if grad.numel() == 0:
        sums = grad_v.new_zeros(batch, 10, channels, dtype=sum_dtype)
        return grad_v.zero_(), sums[:, :9].contiguous(), sums[:, 9].sum(dim=0)
    # Prefix tokens are not in the result.
    grad_v[:, :prefix].zero_()
    grad, v, weight = _dense_channels(grad), _dense_channels(v), weight.contiguous()
    blocks, block_channels = triton.cdiv(height * width, BLOCK_TOKENS), _block_channels(channels)
    partial_sums = grad_v.new_empty(batch, blocks, 10, channels, dtype=sum_dtype)
    with torch.cuda.device_of(v):
        local_residual_backward_kernel[(batch * blocks, triton.cdiv(channels, block_channels))](
            grad,
            v,
            weight,
            weight if key_mask is None else _as_bytes(key_mask),
            grad_v,
            partial_sums,
            grad.stride(0),
            grad.stride(1),
            v.stride(0),
            v.stride(1),
            height,
            width,
            channels,
            prefix,
            HAS_MASK=key_mask is not None,
            SUM_DTYPE=_sum_dtype(v),
            BLOCK_N=BLOCK_TOKENS,
            BLOCK_C=block_channels,
            num_warps=NUM_WARPS,
        )
    sums = partial_sums.sum(dim=1)
    return grad_v, sums[:, :9].contiguous(), sums[:, 9].sum(dim=0)


@_local_residual_backward.register_fake
def _(_grad: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    grad_v = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    dtype, channels = torch.promote_types(v.dtype, torch.float32), v.shape[2]
    return (
        grad_v,
        grad_v.new_empty(v.shape[0], 9, channels, dtype=dtype),
        grad_v.new_empty(channels, dtype=dtype),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    v, weight, bias, key_mask, ctx.height, ctx.width = inputs
    ctx.save_for_backward(v, weight, key_mask)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    v, weight, key_mask = ctx.saved_tensors
    grad_v, grad_weight, grad_bias = _local_residual_backward(
        grad, v, weight, key_mask, ctx.height, ctx.width
    )
    bias = None if ctx.bias_dtype is None else grad_bias.to(ctx.bias_dtype)
    return grad_v, grad_weight.to(weight.dtype), bias, None, None, None


_local_residual.register_autograd(_backward, setup_context=_setup_context)


def _dense_channels(x: Tensor) -> Tensor:
    """Return tokens whose channels are adjacent; slices of a wider projection are not copied."""
    return x if x.stride(2) == 1 else x.contiguous()


def _as_bytes(key_mask: Tensor) -> Tensor:
    return key_mask.contiguous().view(torch.uint8)


def _block_channels(channels: int) -> int:
    return min(BLOCK_CHANNELS, triton.next_power_of_2(channels))


def _sum_dtype(v: Tensor) -> tl.dtype:
    return tl.float64 if v.dtype == torch.float64 else tl.float32


# Offsets of images and tokens are int64: an image may have more than 2³¹ values.


@triton.jit
def local_residual_kernel(
    v_ptr,
    weight_ptr,
    bias_ptr,
    mask_ptr,
    out_ptr,
    v_image_stride,
    v_token_stride,
    height,
    width,
    channels,
    prefix,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    SUM_DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    num_tokens = height * width
    blocks = tl.cdiv(num_tokens, BLOCK_N)
    image = (tl.program_id(0) // blocks).to(tl.int64)
    token = (tl.program_id(0) % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    y, x = token // width, token % width
    is_token, is_channel = token < num_tokens, channel < channels

    v_ptr += image * v_image_stride + channel[None, :]
    weight_ptr += image * 9 * channels + channel
    if HAS_MASK:
        mask_ptr += image * (prefix + num_tokens) + prefix
    total = tl.zeros((BLOCK_N, BLOCK_C), dtype=SUM_DTYPE)
    if HAS_BIAS:
        total += tl.load(bias_ptr + channel, mask=is_channel, other=0).to(SUM_DTYPE)[None, :]
    for t in tl.static_range(9):
        ny, nx = y + (t // 3 - 1), x + (t % 3 - 1)
        neighbor = ny * width + nx
        is_inside = is_token & (ny >= 0) & (ny < height) & (nx >= 0) & (nx < width)
        if HAS_MASK:
            is_inside = is_inside & (tl.load(mask_ptr + neighbor, mask=is_inside, other=0) != 0)
        value = tl.load(
            v_ptr + (prefix + neighbor).to(tl.int64)[:, None] * v_token_stride,
            mask=is_inside[:, None] & is_channel[None, :],
            other=0,
        )
        weight = tl.load(weight_ptr + t * channels, mask=is_channel, other=0)
        total += value.to(SUM_DTYPE) * weight.to(SUM_DTYPE)[None, :]
    offset = (image * num_tokens + token)[:, None] * channels + channel[None, :]
    tl.store(
        out_ptr + offset, total.to(out_ptr.dtype.element_ty), mask=is_token[:, None] & is_channel[None, :]
    )


@triton.jit
def local_residual_backward_kernel(
    grad_ptr,
    v_ptr,
    weight_ptr,
    mask_ptr,
    grad_v_ptr,
    sums_ptr,
    grad_image_stride,
    grad_token_stride,
    v_image_stride,
    v_token_stride,
    height,
    width,
    channels,
    prefix,
    HAS_MASK: tl.constexpr,
    SUM_DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    num_tokens = height * width
    blocks = tl.cdiv(num_tokens, BLOCK_N)
    image = (tl.program_id(0) // blocks).to(tl.int64)
    token = (tl.program_id(0) % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    y, x = token // width, token % width
    is_token, is_channel = token < num_tokens, channel < channels

    is_key = is_token
    if HAS_MASK:
        mask_ptr += image * (prefix + num_tokens) + prefix
        is_key = is_token & (tl.load(mask_ptr + token, mask=is_token, other=0) != 0)
    v_offset = (prefix + token).to(tl.int64)[:, None] * v_token_stride + channel[None, :]
    value = tl.load(
        v_ptr + image * v_image_stride + v_offset, mask=is_key[:, None] & is_channel[None, :], other=0
    ).to(SUM_DTYPE)
    grad_ptr += image * grad_image_stride + channel[None, :]
    weight_ptr += image * 9 * channels + channel
    # One row per weight and one for the bias.
    sums_ptr += tl.program_id(0).to(tl.int64) * 10 * channels + channel
    total = tl.zeros((BLOCK_N, BLOCK_C), dtype=SUM_DTYPE)
    for t in tl.static_range(9):
        # This token is the t-th neighbour of the one at (ny, nx).
        ny, nx = y - (t // 3 - 1), x - (t % 3 - 1)
        is_inside = is_token & (ny >= 0) & (ny < height) & (nx >= 0) & (nx < width)
        grad = tl.load(
            grad_ptr + (ny * width + nx).to(tl.int64)[:, None] * grad_token_stride,
            mask=is_inside[:, None] & is_channel[None, :],
            other=0,
        ).to(SUM_DTYPE)
        weight = tl.load(weight_ptr + t * channels, mask=is_channel, other=0).to(SUM_DTYPE)
        total += grad * weight[None, :]
        tl.store(sums_ptr + t * channels, tl.sum(value * grad, axis=0), mask=is_channel)
        if t == 4:
            tl.store(sums_ptr + 9 * channels, tl.sum(grad, axis=0), mask=is_channel)
    total = tl.where(is_key[:, None], total, 0)
    offset = (image * (prefix + num_tokens) + prefix + token)[:, None] * channels + channel[None, :]
    tl.store(
        grad_v_ptr + offset,
        total.to(grad_v_ptr.dtype.element_ty),
        mask=is_token[:, None] & is_channel[None, :],
    )
