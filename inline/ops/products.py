"""Matrix products on a CPU through oneDNN, with derivatives and in compiled programs.

In float32, PyTorch's own products call MKL, which is slower on some processors. In inference oneDNN also
applies a GELU to the product, in the same kernel, in float32 and bfloat16. See docs/speed.md for the times.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from inline.ops.symint import size_hint
from inline.ops.tokens import is_autocast, is_eager

# Whether torch has the operator; only x86 processors were timed.
HAS_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability().startswith('AVX')
    and hasattr(torch.ops.mkldnn, '_linear_pointwise')
)
# Whether oneDNN has kernels for bfloat16 on this processor.
HAS_BFLOAT16 = HAS_ONEDNN and torch.ops.mkldnn._is_mkldnn_bf16_supported()
# Matrices of a batch are multiplied one by one if they have at least this size.
BATCHED_FROM_CHANNELS = 64
BATCHED_FROM_PRODUCTS = 2**20
_AUTOCAST_FROM = {torch.float32, torch.bfloat16}


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, gelu: bool = False) -> Tensor:
    """Return x · weightᵀ + bias, or its GELU, which has no derivative.

    Args:
        x: (…, C).
        weight: (c, C).
        bias: (c).
        gelu: Whether to apply the GELU.
    """
    if not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
        # Without the dispatch of an operator with a derivative, which takes 8 µs.
        return onednn_product(x, weight, bias, gelu)
    out: Tensor = torch.ops.inline.linear(x, weight, bias, gelu)
    return out


def batched_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x · weightᵀ + bias for each matrix of a batch: (B, N, C), (B, c, C), (B, 1, c) → (B, N, c)."""
    if not uses_onednn_in_batches(x, weight):
        weight = weight.transpose(1, 2)
        return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)
    if not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
        return _batched_cpu(x, weight, bias)
    out: Tensor = torch.ops.inline.batched_linear(x, weight, bias)
    return out


def uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN's kernel for float32 applies."""
    return x.dtype is weight.dtype is torch.float32 and _is_plain_cpu(x, weight) and not is_autocast(x.device)


def uses_bfloat16(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN's kernel for bfloat16 applies: under autocast, or to such weights."""
    if is_autocast(x.device):
        known = (
            torch.get_autocast_dtype('cpu') == torch.bfloat16 and {x.dtype, weight.dtype} <= _AUTOCAST_FROM
        )
    else:
        known = x.dtype == weight.dtype == torch.bfloat16
    # Inductor fuses the GELU by itself.
    return known and HAS_BFLOAT16 and not torch.compiler.is_compiling() and _is_plain_cpu(x, weight)


def uses_onednn_in_batches(x: Tensor, weight: Tensor) -> bool:
    """Return whether :func:`batched_product` calls oneDNN, for matrices large enough for a call of each."""
    sizes = sorted([size_hint(size) for size in (*x.shape[1:], weight.shape[1])])
    if sizes[1] < BATCHED_FROM_CHANNELS or math.prod(sizes) < BATCHED_FROM_PRODUCTS:
        return False
    return uses_onednn(x, weight)


def _is_plain_cpu(x: Tensor, weight: Tensor) -> bool:
    """Return whether plain tensors on a CPU are multiplied, without an exporter or observer of operators."""
    if not (x.is_cpu and weight.is_cpu and HAS_ONEDNN and type(x) is Tensor):
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting()
    if not is_eager() or forward_ad._current_level >= 0 or not x.numel():
        return False
    # FLOP counters and other dispatch modes know PyTorch's operators only.
    return torch._C._get_mkldnn_enabled() and not is_in_torch_dispatch_mode()


# Operators of our own, because PyTorch's has no derivative, and inductor expects a packed weight in it.
torch.library.define('inline::linear', '(Tensor x, Tensor weight, Tensor? bias, bool gelu) -> Tensor')
torch.library.define('inline::batched_linear', '(Tensor x, Tensor weight, Tensor? bias) -> Tensor')


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool) -> Tensor:
    """Call oneDNN's kernel; the arguments are those of :func:`product`."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, 'gelu' if gelu else 'none', [], 'none')
    return out


def _batched_cpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if len(x) == 1:
        return onednn_product(x, weight[0], None if bias is None else bias[0, 0], gelu=False)
    biases = [None] * len(x) if bias is None else bias[:, 0]
    return torch.stack(
        [onednn_product(*matrices, gelu=False) for matrices in zip(x, weight, biases, strict=True)]
    )


torch.library.impl('inline::linear', 'cpu', onednn_product)
torch.library.impl('inline::batched_linear', 'cpu', _batched_cpu)


@torch.library.register_fake('inline::linear')
def _(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool) -> Tensor:  # noqa: ARG001 (no effect on the shape)
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.register_fake('inline::batched_linear')
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ARG001
    return x.new_empty(*x.shape[:2], weight.shape[1])


def _save_linear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's signature)
    x, weight, _, gelu = inputs
    assert not gelu, 'the GELU has no derivative here'
    ctx.save_for_backward(x, weight)


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
    rows = grad.flatten(0, -2)
    return (
        product(grad, weight.t()) if needs_x else None,
        _transposed_product(rows, x.flatten(0, -2)) if needs_weight else None,
        rows.sum(dim=0) if needs_bias else None,
        None,
    )


def _transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """Return aᵀ · b for a (N, c) and b (N, C)."""
    # The first operand is copied to be contiguous: the narrower one.
    return product(b.t(), a.t()).t() if b.shape[1] < a.shape[1] else product(a.t(), b.t())


def _save_batched(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's signature)
    ctx.save_for_backward(*inputs[:2])


def _batched_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    # Not batched_product(), which would choose bmm while torch.compile traces a backward pass. Both products
    # have the sizes of the first, for which oneDNN was chosen.
    product = torch.ops.inline.batched_linear
    return (
        product(grad, weight.transpose(1, 2), None) if needs_x else None,
        product(grad.transpose(1, 2), x.transpose(1, 2), None) if needs_weight else None,
        grad.sum(dim=1, keepdim=True) if needs_bias else None,
    )


torch.library.register_autograd('inline::linear', _linear_backward, setup_context=_save_linear)
torch.library.register_autograd('inline::batched_linear', _batched_backward, setup_context=_save_batched)
