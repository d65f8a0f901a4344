"""Linear layers on a CPU: oneDNN computes the products of the forward and backward pass.

PyTorch's own linear layer calls MKL, which is slower on some processors. In inference oneDNN also applies the
GELU after a layer, in the same kernel. See docs/speed.md for the times.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from inline.models.layers.fast_paths import is_plain
from inline.ops.symint import is_tracing
from inline.ops.tokens import is_autocast, is_transforming

# oneDNN reorders the weight in each call. With fewer tokens only the fused GELU pays for that.
ONEDNN_FROM = 128


def linear(layer: nn.Linear, x: Tensor, rows: slice | None = None) -> Tensor:
    """Return ``layer(x)`` for x (…, C), or only the output channels ``rows`` of a plain layer."""
    if rows is None and not is_plain(layer, nn.Linear):
        return layer(x)
    weight: Tensor = layer.weight
    bias: Tensor | None = layer.bias
    if rows is not None:
        weight, bias = weight[rows], None if bias is None else bias[rows]
    if _uses_onednn(x, weight) and x.shape[:-1].numel() >= ONEDNN_FROM:
        if not torch.is_grad_enabled():
            return _product(x, weight, bias)
        out: Tensor = _DifferentiableLinear.apply(x, weight, bias)
        return out
    return layer(x) if rows is None else F.linear(x, weight, bias)


def linear_gelu(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return ``gelu(layer(x))`` for x (…, C)."""
    if torch.is_grad_enabled():
        return F.gelu(linear(layer, x))
    if is_plain(layer, nn.Linear) and _uses_onednn(x, layer.weight):
        return torch.ops.mkldnn._linear_pointwise(x, layer.weight, layer.bias, 'gelu', [], 'none')
    return F.gelu(layer(x))


class _DifferentiableLinear(torch.autograd.Function):
    """``F.linear`` in oneDNN, with all three products of the forward and backward pass."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            _multiply(grad, weight) if needs_x else None,
            _multiply_transposed(rows, x.flatten(0, -2)) if needs_weight else None,
            rows.sum(dim=0) if needs_bias else None,
        )

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor | None, weight_t: Tensor | None, bias_t: Tensor | None) -> Tensor:
        x, weight = ctx.saved_tensors
        out = x.new_zeros(*x.shape[:-1], len(weight)) if bias_t is None else bias_t
        if x_t is not None:
            out = out + F.linear(x_t, weight)
        if weight_t is not None:
            out = out + F.linear(x, weight_t)
        return out


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x · weightᵀ + bias."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, 'none', [], '')
    return out


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return a · b in a backward pass."""
    # oneDNN's operator has no derivative, which a second derivative needs.
    return a @ b if torch.is_grad_enabled() else _product(a, b.t())


def _multiply_transposed(a: Tensor, b: Tensor) -> Tensor:
    """Return aᵀ · b in a backward pass, for a (N, c) and b (N, C)."""
    if torch.is_grad_enabled():
        return a.t() @ b
    # The first operand is copied to be contiguous: the narrower one.
    return _product(b.t(), a.t()).t() if b.shape[1] < a.shape[1] else _product(a.t(), b.t())


def _uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN's kernel applies: float32 on a CPU, no tracer or observer of operators."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or type(x) is not Tensor:
        return False
    if x.device.type != 'cpu' or weight.device.type != 'cpu' or not x.numel():
        return False
    if is_tracing() or is_transforming():
        return False
    # FLOP counters and other dispatch modes know the operators of nn.Linear only.
    return _has_onednn() and not is_autocast(x.device) and not is_in_torch_dispatch_mode()


def _has_onednn() -> bool:
    return torch._C._get_mkldnn_enabled() and _is_supported_cpu()


@cache
def _is_supported_cpu() -> bool:
    """Return whether the operator exists; only x86 processors were timed."""
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability().startswith('AVX')
        and hasattr(torch.ops.mkldnn, '_linear_pointwise')
    )
