"""Leaving keys out: a masked key enters neither sums nor means, whatever it holds."""

from torch import Tensor


def zero_masked(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Zero the tokens of x (B, …, N, d) where key_mask (B, N) is False, even if they hold NaN."""
    if key_mask is None:
        return x
    return x.masked_fill(~_align(key_mask, x), 0)


def count_keys(x: Tensor, key_mask: Tensor | None) -> int | Tensor:
    """How many tokens of x (B, …, N, d) count: N, or a tensor that broadcasts against x."""
    if key_mask is None:
        return x.shape[-2]
    return _align(key_mask, x).sum(dim=-2, keepdim=True).clamp(min=1).to(x.dtype)


def masked_mean(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Mean of x (B, …, N, d) over the tokens that count, as (B, …, 1, d)."""
    if key_mask is None:
        return x.mean(dim=-2, keepdim=True)
    return zero_masked(x, key_mask).sum(dim=-2, keepdim=True) / count_keys(x, key_mask)


def _align(key_mask: Tensor, x: Tensor) -> Tensor:
    """(B, N) → (B, 1, …, N, 1), to broadcast against x (B, …, N, d)."""
    for _ in range(x.dim() - 3):
        key_mask = key_mask.unsqueeze(1)
    return key_mask.unsqueeze(-1)
