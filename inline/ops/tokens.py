"""Helpers shared by all attention ops: token layout, key masks, numeric precision.

Layout: P prefix tokens (such as a class token), then the H·W tokens of a map in row-major order.

Key masks: boolean (B, N), False for keys that are excluded, such as padding. A masked key affects no sum or
mean, even if its values are NaN.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from inline.ops.symint import is_tracing, statically_true

P = ParamSpec('P')

ALL_QUERIES = slice(None)
HALF_DTYPES = (torch.bfloat16, torch.float16)
_AUTOCAST_DEVICES = ('cpu', 'cuda', 'mps', 'xpu')


# Layout


def count_prefix(num_tokens: int, hw: tuple[int, int]) -> int:
    """Return P, the number of tokens before those of a map of size ``hw``."""
    prefix = num_tokens - hw[0] * hw[1]
    if statically_true(prefix < 0):
        raise ValueError(f'{num_tokens} tokens cannot hold a map of {hw[0]}×{hw[1]} = {hw[0] * hw[1]} tokens')
    return prefix


def add_to_map(x: Tensor, term: Tensor, inplace: bool = False) -> Tensor:
    """Add ``term`` (B, H·W, C) to the map tokens of x (B, P + H·W, C); prefix tokens are unchanged.

    ``inplace`` overwrites x where :func:`allows_inplace` permits it.
    """
    prefix = x.shape[1] - term.shape[1]
    if inplace and allows_inplace():
        x[:, prefix:].add_(term)
        return x
    return x + (term if statically_true(prefix == 0) else F.pad(term, (0, 0, prefix, 0)))


def allows_inplace() -> bool:
    """Return whether intermediate results may be overwritten, and sizes of one call may decide how.

    False if a gradient may be needed; under tracing, where the program must not depend on the grad mode or
    the sizes of the example; and under transforms of torch.func, where a result may have no axis of models
    or samples yet and what is added to it has one.
    """
    return not torch.is_grad_enabled() and is_eager()


def is_eager() -> bool:
    """Return whether operators run as they are called: without a tracer or a transform of torch.func."""
    return not is_tracing() and peek_interpreter_stack() is None


def is_transforming() -> bool:
    """Return whether a transform of torch.func such as vmap or grad is active, outside a tracer."""
    return not is_tracing() and peek_interpreter_stack() is not None


def position_indices(length: int, like: Tensor) -> Tensor:
    """Return 0, 1, …, length − 1 on the device of ``like``, in at least float32, so that all differ."""
    return torch.arange(length, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))


# Key masks


def zero_masked(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Zero the tokens of x (B, …, N, d) where key_mask (B, N) is False, even if they are NaN."""
    if key_mask is None:
        return x
    return x.masked_fill(~_align(key_mask, x), 0)


def count_keys(x: Tensor, key_mask: Tensor | None) -> int | Tensor:
    """Return the number of unmasked tokens of x (B, …, N, d).

    An integer without a mask; with one, a tensor with the dtype of x that broadcasts against x.
    """
    count = count_keys_exact(x, key_mask)
    return count.to(x.dtype) if isinstance(count, Tensor) else count


def count_keys_exact(x: Tensor, key_mask: Tensor | None) -> int | Tensor:
    """Return :func:`count_keys` in at least float32.

    float16 overflows above 65,504, and bfloat16 represents integers exactly only up to 256.
    """
    if key_mask is None:
        return x.shape[-2]
    count = _align(key_mask, x).sum(dim=-2, keepdim=True).clamp(min=1)
    return count.to(torch.promote_types(x.dtype, torch.float32))


def inverse_sqrt_count(x: Tensor, key_mask: Tensor | None) -> float | Tensor:
    """Return N^(-1/2) for the N unmasked tokens of x (B, …, N, d), in the dtype of x."""
    root = count_keys_exact(x, key_mask) ** -0.5
    return root.to(x.dtype) if isinstance(root, Tensor) else root


def masked_mean(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return the mean of x (B, …, N, d) over its unmasked tokens, (B, …, 1, d)."""
    if key_mask is None:
        return x.mean(dim=-2, keepdim=True)
    # Accumulates in float32 as mean() does: the sum may overflow float16 where the mean does not.
    dtype = torch.promote_types(x.dtype, torch.float32)
    total = zero_masked(x, key_mask).sum(dim=-2, keepdim=True, dtype=dtype)
    return (total / count_keys_exact(x, key_mask)).to(x.dtype)


def _align(key_mask: Tensor, x: Tensor) -> Tensor:
    """(B, N) → (B, 1, …, N, 1), to broadcast against x (B, …, N, d)."""
    for _ in range(x.dim() - 3):
        key_mask = key_mask.unsqueeze(1)
    return key_mask.unsqueeze(-1)


# Precision


def is_autocast(device: torch.device) -> bool:
    """Return whether autocast is on for the device. Some devices, such as meta, do not support it."""
    return torch.is_autocast_enabled(device.type) if device.type in _AUTOCAST_DEVICES else False


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context that disables autocast, for small products that need full precision."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else nullcontext()


def rounds_products(device: torch.device) -> bool:
    """Return whether matrix products of float32 tensors round their operands to TF32 or bfloat16.

    A compiler cannot read this setting, and a compiled program may run under another one. There, GPUs count
    as rounding and CPUs as exact.
    """
    if is_tracing():
        return device.type == 'cuda'
    if device.type == 'cuda':
        return torch.backends.cuda.matmul.fp32_precision == 'tf32'
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    return device.type == 'cpu' and matmul.fp32_precision in ('tf32', 'bf16')


def full_precision(op: Callable[Concatenate[Tensor, P], Tensor]) -> Callable[Concatenate[Tensor, P], Tensor]:
    """Decorate an op to compute in at least float32 and without autocast.

    For ops whose intermediate values do not fit float16, such as the gradients of a division by a sum of
    scores that is almost zero. The result has the dtype of the first argument.
    """

    @wraps(op)
    def wrapped(q: Tensor, *args: P.args, **options: P.kwargs) -> Tensor:
        with no_autocast(q.device):
            wide = [_widen(value) for value in args]
            return op(_widen(q), *wide, **{name: _widen(value) for name, value in options.items()}).to(
                q.dtype
            )

    return wrapped


def _widen(value: Any) -> Any:
    """Return a floating point tensor in at least float32, and any other value unchanged."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.to(torch.promote_types(value.dtype, torch.float32))
