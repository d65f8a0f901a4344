"""Where tokens stand: P prefix tokens (a class token), then a map row by row."""

import torch
from torch import Tensor

ALL_QUERIES = slice(None)


def count_prefix(tokens: int, hw: tuple[int, int]) -> int:
    """P, the tokens that come before those of a map of ``hw``."""
    prefix = tokens - hw[0] * hw[1]
    if prefix < 0:
        raise ValueError(f'{tokens} tokens cannot hold a map of {hw[0]}×{hw[1]} = {hw[0] * hw[1]} tokens')
    return prefix


def count_along(length: int, like: Tensor) -> Tensor:
    """0, 1, … length − 1 on the device of ``like``, in a precision that tells large numbers apart."""
    return torch.arange(length, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))
