"""Covariance of two sets of channels over the tokens, safe in half precision."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from inline.ops.masking import count_exactly, root_share, zero_masked
from inline.ops.open_sizes import is_open

HALF = (torch.bfloat16, torch.float16)
AUTOCAST_DEVICES = ('cpu', 'cuda', 'mps', 'xpu')


def covariance(
    k: Tensor, v: Tensor, scale: float = 1.0, key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(s/N) Σ_j (k_j − k̄) (v_j − v̄)ᵀ as (B, d, e) and v̄ as (B, 1, e), in float32 or better.

    Args:
        k: (B, N, d), zero at masked tokens.
        v: (B, N, e), zero at masked tokens.
        scale: s.
        key_mask: (B, N), True for the tokens that take part; None for all.
    """
    if key_mask is None and not (autocasts(k.device) or k.dtype in HALF or v.dtype in HALF):
        # The means are taken out of the small product, not of the tokens: no copy of them is made.
        count = k.shape[1]
        k_sum, v_mean = k.sum(dim=1, keepdim=True), v.mean(dim=1, keepdim=True)
        outer = k_sum.transpose(1, 2) * v_mean
        if is_open(count):
            # AOTInductor takes numbers alone as factors of a product.
            return torch.baddbmm(outer, k.transpose(1, 2), v, beta=-1) * (scale / count), v_mean
        # Factors are left to the product, which takes them for nothing.
        return torch.baddbmm(outer, k.transpose(1, 2), v, beta=-scale / count, alpha=scale / count), v_mean
    # Rounding would eat a small difference of large products, so both sides are centred before it; what
    # rounding of the means leaves is then a product of two errors. Half of 1/N on each side keeps the sum
    # within float16's range.
    dtype = torch.promote_types(k.dtype, torch.float32)
    counted = count_exactly(k, key_mask)
    k_mean, v_mean = (t.sum(dim=1, keepdim=True, dtype=dtype) / counted for t in (k, v))
    root = root_share(k, key_mask)
    k, v = ((t - mean.to(t.dtype)) * root for t, mean in ((k, k_mean), (v, v_mean)))
    return (zero_masked(k, key_mask).transpose(1, 2) @ v).to(dtype) * scale, v_mean


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """For small products that must not be rounded."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else nullcontext()


def autocasts(device: torch.device) -> bool:
    """Whether products on the device are rounded to half precision. Some devices, as meta, cannot do it."""
    return torch.is_autocast_enabled(device.type) if device.type in AUTOCAST_DEVICES else False
