"""Linear layers for inference on a CPU: oneDNN computes the product, its bias and a GELU in one kernel.

PyTorch's own linear layer calls MKL and applies the GELU in a second pass over its result. See docs/speed.md
for the times.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from inline.models.layers.fast_paths import is_plain
from inline.ops.tokens import allows_inplace, is_autocast

# oneDNN reorders the weight in each call. With fewer tokens only the fused GELU pays for that.
ONEDNN_FROM = 512


def linear(layer: nn.Linear, x: Tensor, rows: slice | None = None) -> Tensor:
    """Return ``layer(x)`` for x (…, C), or only the output channels ``rows`` of a plain layer."""
    if rows is None and not is_plain(layer, nn.Linear):
        return layer(x)
    weight: Tensor = layer.weight
    bias: Tensor | None = layer.bias
    if rows is not None:
        weight, bias = weight[rows], None if bias is None else bias[rows]
    if _uses_onednn(x, weight) and x.shape[:-1].numel() >= ONEDNN_FROM:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, 'none', [], '')
    return layer(x) if rows is None else F.linear(x, weight, bias)


def linear_gelu(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return ``gelu(layer(x))`` for x (…, C)."""
    if is_plain(layer, nn.Linear) and _uses_onednn(x, layer.weight):
        return torch.ops.mkldnn._linear_pointwise(x, layer.weight, layer.bias, 'gelu', [], 'none')
    return F.gelu(layer(x))


def _uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN's kernel applies: float32 on a CPU, no gradient, no observer of operators."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or type(x) is not Tensor:
        return False
    if x.device.type != 'cpu' or weight.device.type != 'cpu' or not x.numel() or not allows_inplace():
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
