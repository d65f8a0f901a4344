"""Linear layers on a CPU: oneDNN computes the products of the forward and backward pass.

In float32, PyTorch's own linear layer calls MKL, which is slower on some processors. In inference oneDNN also
applies the GELU after a layer, in the same kernel, in float32 and bfloat16. See docs/speed.md for the times.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from inline.models.layers.fast_paths import is_plain
from inline.ops.symint import size_hint
from inline.ops.tokens import is_autocast, is_transforming

# Whether torch has the operator; only x86 processors were timed.
HAS_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability().startswith('AVX')
    and hasattr(torch.ops.mkldnn, '_linear_pointwise')
)
# Whether oneDNN has kernels for bfloat16 on this processor.
HAS_BFLOAT16 = HAS_ONEDNN and torch.ops.mkldnn._is_mkldnn_bf16_supported()
_AUTOCAST_FROM = {torch.float32, torch.bfloat16}
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
    if _uses_onednn(x, weight) and size_hint(math.prod(x.shape[:-1])) >= ONEDNN_FROM:
        return _product(x, weight, bias)
    return layer(x) if rows is None else F.linear(x, weight, bias)


def linear_gelu(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return ``gelu(layer(x))`` for x (…, C)."""
    # A backward pass needs the output of the layer.
    if not torch.is_grad_enabled() and is_plain(layer, nn.Linear):
        if _uses_onednn(x, layer.weight):
            return _product(x, layer.weight, layer.bias, gelu=True)
        if _uses_bfloat16(x, layer.weight):
            # Autocast does not know the operator, so its operands are converted here.
            bias = None if layer.bias is None else layer.bias.bfloat16()
            return _linear_cpu(x.bfloat16(), layer.weight.bfloat16(), bias, gelu=True)
    return F.gelu(linear(layer, x))


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None, gelu: bool = False) -> Tensor:
    """Return x · weightᵀ + bias, or its GELU, which has no derivative."""
    if not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
        # Without the dispatch of an operator with a derivative, which takes 8 µs.
        return _linear_cpu(x, weight, bias, gelu)
    out: Tensor = torch.ops.inline.linear(x, weight, bias, gelu)
    return out


# An operator of our own, because PyTorch's has no derivative, and inductor expects a packed weight in it.
torch.library.define('inline::linear', '(Tensor x, Tensor weight, Tensor? bias, bool gelu) -> Tensor')


def _linear_cpu(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, 'gelu' if gelu else 'none', [], 'none')
    return out


torch.library.impl('inline::linear', 'cpu', _linear_cpu)


@torch.library.register_fake('inline::linear')
def _(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool) -> Tensor:  # noqa: ARG001 (no effect on the shape)
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's signature)
    x, weight, _, gelu = inputs
    assert not gelu, 'the GELU has no derivative here'
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
    rows = grad.flatten(0, -2)
    return (
        _product(grad, weight.t()) if needs_x else None,
        _transposed_product(rows, x.flatten(0, -2)) if needs_weight else None,
        rows.sum(dim=0) if needs_bias else None,
        None,
    )


torch.library.register_autograd('inline::linear', _backward, setup_context=_save_inputs)


def _transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """Return aᵀ · b for a (N, c) and b (N, C)."""
    # The first operand is copied to be contiguous: the narrower one.
    return _product(b.t(), a.t()).t() if b.shape[1] < a.shape[1] else _product(a.t(), b.t())


def _uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN's kernel for float32 applies."""
    return x.dtype == weight.dtype == torch.float32 and not is_autocast(x.device) and _is_plain_cpu(x, weight)


def _uses_bfloat16(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN's kernel for bfloat16 applies: under autocast, or to such weights."""
    if is_autocast(x.device):
        known = (
            torch.get_autocast_dtype('cpu') == torch.bfloat16 and {x.dtype, weight.dtype} <= _AUTOCAST_FROM
        )
    else:
        known = x.dtype == weight.dtype == torch.bfloat16
    # Inductor fuses the GELU by itself.
    return known and HAS_BFLOAT16 and not torch.compiler.is_compiling() and _is_plain_cpu(x, weight)


def _is_plain_cpu(x: Tensor, weight: Tensor) -> bool:
    """Return whether plain tensors on a CPU are multiplied, without an exporter or observer of operators."""
    if type(x) is not Tensor or x.device.type != 'cpu' or weight.device.type != 'cpu' or not HAS_ONEDNN:
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting()
    if torch.jit.is_tracing() or is_transforming() or forward_ad._current_level >= 0 or not x.numel():
        return False
    # FLOP counters and other dispatch modes know the operators of nn.Linear only.
    return torch._C._get_mkldnn_enabled() and not is_in_torch_dispatch_mode()
