"""Linear layers, with the GELU after them, through oneDNN (:mod:`inline.ops.products`)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers.fast_paths import is_plain
from inline.ops.products import onednn_product, product, uses_bfloat16, uses_onednn
from inline.ops.symint import size_hint
from inline.utils.environment import cpu_name

# oneDNN reorders the weight in each call. With fewer tokens only the fused GELU pays for that. MKL is slower
# on processors of AMD: there oneDNN is already twice as fast with 49 tokens of 512 channels.
ONEDNN_FROM = 32 if 'AMD' in cpu_name() else 128


def linear(layer: nn.Linear, x: Tensor, rows: slice | None = None) -> Tensor:
    """Return ``layer(x)`` for x (…, C), or only the output channels ``rows`` of a plain layer."""
    if rows is None and not is_plain(layer, nn.Linear):
        return layer(x)
    weight: Tensor = layer.weight
    bias: Tensor | None = layer.bias
    if rows is not None:
        weight, bias = weight[rows], None if bias is None else bias[rows]
    if size_hint(math.prod(x.shape[:-1])) >= ONEDNN_FROM:
        if uses_onednn(x, weight):
            return product(x, weight, bias)
        if not torch.is_grad_enabled() and uses_bfloat16(x, weight):
            return _bfloat16_product(x, weight, bias)
    return layer(x) if rows is None else F.linear(x, weight, bias)


def linear_gelu(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return ``gelu(layer(x))`` for x (…, C)."""
    # A backward pass needs the output of the layer.
    if not torch.is_grad_enabled() and is_plain(layer, nn.Linear):
        if uses_onednn(x, layer.weight):
            return product(x, layer.weight, layer.bias, gelu=True)
        if uses_bfloat16(x, layer.weight):
            return _bfloat16_product(x, layer.weight, layer.bias, gelu=True)
    return F.gelu(linear(layer, x))


def _bfloat16_product(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Tensor:
    # Autocast does not know the operator, so its operands are converted here.
    return onednn_product(x.bfloat16(), weight.bfloat16(), None if bias is None else bias.bfloat16(), gelu)
