"""Leaving keys out: a masked key enters neither sums nor means, whatever it holds."""

import torch
from torch import Tensor


def zero_masked(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Zero the tokens of x (B, …, N, d) where key_mask (B, N) is False, even if they hold NaN."""
    if key_mask is None:
        return x
    return x.masked_fill(~_align(key_mask, x), 0)


def count_keys(x: Tensor, key_mask: Tensor | None) -> int | Tensor:
    """How many tokens of x (B, …, N, d) count: N, or a tensor of its precision that broadcasts against x."""
    count = count_exactly(x, key_mask)
    return count.to(x.dtype) if isinstance(count, Tensor) else count


def count_exactly(x: Tensor, key_mask: Tensor | None) -> int | Tensor:
    """:func:`count_keys` in float32 or better: float16 ends at 65,504, bfloat16 is exact to 256."""
    if key_mask is None:
        return x.shape[-2]
    counted = _align(key_mask, x).sum(dim=-2, keepdim=True).clamp(min=1)
    return counted.to(torch.promote_types(x.dtype, torch.float32))


def root_share(x: Tensor, key_mask: Tensor | None) -> float | Tensor:
    """N^(-1/2) for the N tokens of x (B, …, N, d) that count, in the precision of x."""
    root = count_exactly(x, key_mask) ** -0.5
    return root.to(x.dtype) if isinstance(root, Tensor) else root


def masked_mean(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Mean of x (B, …, N, d) over the tokens that count, as (B, …, 1, d)."""
    if key_mask is None:
        return x.mean(dim=-2, keepdim=True)
    # As mean() does it: the sum may leave float16's range where the mean does not.
    total = zero_masked(x, key_mask).sum(
        dim=-2, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32)
    )
    return (total / count_exactly(x, key_mask)).to(x.dtype)


def _align(key_mask: Tensor, x: Tensor) -> Tensor:
    """(B, N) → (B, 1, …, N, 1), to broadcast against x (B, …, N, d)."""
    for _ in range(x.dim() - 3):
        key_mask = key_mask.unsqueeze(1)
    return key_mask.unsqueeze(-1)
