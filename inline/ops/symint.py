"""Sizes under torch.export: with dynamic shapes a size is a ``torch.SymInt``, not a number.

A Python branch on a SymInt specialises the exported program to the branch that was taken. Code that branches
on sizes calls these functions instead. For plain integers they return what the Python operators would.
"""

import torch


def is_symbolic(*sizes: int) -> bool:
    """Return whether any of the sizes is symbolic."""
    return any(isinstance(size, torch.SymInt) for size in sizes)


def statically_true(condition: bool) -> bool:
    """Return whether the condition holds for every value of the symbols in it."""
    if not isinstance(condition, torch.SymBool):
        return condition
    # Imported here because it takes a third of a second.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def size_hint(size: int) -> int:
    """Return the value of a symbol in the traced example, to choose between two equivalent code paths."""
    if not isinstance(size, torch.SymInt):
        return size
    from torch.fx.experimental.symbolic_shapes import optimization_hint

    return optimization_hint(size)


def ceil_div(size: int, divisor: int) -> int:
    """Return size / divisor, rounded up.

    Uses positive numbers only, because ONNX rounds negative quotients towards zero.
    """
    return (size + divisor - 1) // divisor


def sym_min(*sizes: int) -> int:
    """Return the smallest size, symbolic or not."""
    if not is_symbolic(*sizes):
        return min(sizes)
    first, *others = sizes
    for size in others:
        first = torch.sym_min(first, size)
    return first
