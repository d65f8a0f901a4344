"""Sizes that are left open: while torch.export traces for any size, a size is a symbol and not a number.

Python that asks a symbol binds the exported program to the answer. So whoever decides by size asks here. Of
numbers, which is all that there is without export, the answers are what Python's own would be.
"""

import torch


def is_open(*sizes: int) -> bool:
    """Whether one of the sizes is a symbol."""
    return any(isinstance(size, torch.SymInt) for size in sizes)


def known(condition: bool) -> bool:
    """Whether the condition holds for all sizes that the symbols in it may stand for."""
    if not isinstance(condition, torch.SymBool):
        return condition
    # Here, because it takes a third of a second to import.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def expected(size: int) -> int:
    """The number that a symbol had in the example that is traced, to choose the faster of two equal ways."""
    if not isinstance(size, torch.SymInt):
        return size
    from torch.fx.experimental.symbolic_shapes import optimization_hint

    return optimization_hint(size)


def ceil_div(size: int, divisor: int) -> int:
    """size / divisor, rounded up. By positive numbers alone: ONNX would round negative ones towards zero."""
    return (size + divisor - 1) // divisor


def smallest(*sizes: int) -> int:
    """min(), of symbols too."""
    if not is_open(*sizes):
        return min(sizes)
    first, *others = sizes
    for size in others:
        first = torch.sym_min(first, size)
    return first
