"""Sizes under tracing: a size may be a symbol that stands for any number.

With dynamic shapes, torch.compile and torch.export pass sizes as ``torch.SymInt``, and torch.jit.trace passes
tensors. A Python branch on such a size would fix the traced program to the branch that was taken;
torch.compile would compile again for sizes that take another one. Code that branches on sizes calls these
functions instead. For plain integers they return what the Python operators would.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# torch.fx.experimental.symbolic_shapes is imported in functions, because it takes a third of a second.


def is_tracing() -> bool:
    """Return whether torch.compile, torch.export or torch.jit.trace records what is computed."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_symbolic(*sizes: int) -> bool:
    """Return whether any of the sizes is symbolic."""
    if torch.compiler.is_compiling():
        # In torch.compile and in torch.export's strict mode, a symbol is an instance of int.
        from torch.fx.experimental.symbolic_shapes import has_static_value

        return not all(has_static_value(size) for size in sizes)
    return any(isinstance(size, torch.SymInt | Tensor) for size in sizes)


def statically_true(condition: bool) -> bool:
    """Return whether the condition holds for every value of the symbols in it."""
    if torch.compiler.is_compiling() or isinstance(condition, torch.SymBool):
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(condition)
    # torch.jit.trace knows the value in the traced example only.
    return False if isinstance(condition, Tensor) else condition


def size_hint(size: int) -> int:
    """Return the value of a symbol in the traced example, to choose between two equivalent code paths."""
    if torch.compiler.is_compiling() or isinstance(size, torch.SymInt):
        from torch.fx.experimental.symbolic_shapes import optimization_hint

        return optimization_hint(size)
    # torch.jit.trace warns that the trace may depend on the number; here both paths are correct.
    return int(size) if isinstance(size, Tensor) else size


def new_size(size: int) -> int:
    """Return a new symbol for a computed size, in the fake implementation of an operator.

    torch.compile needs minutes for sizes such as ((H + 3) // 4 + 1) // 2, on which all later expressions and
    all loops of the generated code depend. A symbol of its own is a leaf of these expressions. Its value is
    not known before the operator has run, so nothing can branch on it, except on the bounds of the size.
    """
    if not isinstance(size, torch.SymInt) or size.node.expr.is_Symbol:
        return size
    bounds = size.node.shape_env.bound_sympy(size.node.expr)
    if bounds.is_singleton():
        return int(bounds.lower)
    symbol = torch.library.get_ctx().new_dynamic_size(min=int(bounds.lower))
    torch._dynamo.override_optimization_hint(symbol, size_hint(size))
    return symbol


def new_sizes(x: Tensor, *sizes: int) -> tuple[int, ...]:
    """Return new symbols for computed sizes, see :func:`new_size`, in code that torch.compile traces.

    Call this only once for a tensor: the compiler merges equal calls, and would lose the symbols of one.
    """
    carrier: Tensor = torch.ops.inline.new_sizes(x, sizes)
    return tuple(carrier.shape[1:])


# Sizes are returned as the shape of an empty tensor: an operator cannot return a list of sizes.
torch.library.define('inline::new_sizes', '(Tensor x, SymInt[] sizes) -> Tensor')


@torch.library.impl('inline::new_sizes', 'default')
def _(x: Tensor, sizes: Sequence[int]) -> Tensor:
    return x.new_empty(0, *sizes)


@torch.library.register_fake('inline::new_sizes')
def _(x: Tensor, sizes: Sequence[int]) -> Tensor:
    return x.new_empty(0, *map(new_size, sizes))


def ceil_div(size: int, divisor: int) -> int:
    """Return size / divisor, rounded up.

    Uses positive numbers only, because ONNX rounds negative quotients towards zero.
    """
    return (size + divisor - 1) // divisor


def sym_min(a: int, b: int) -> int:
    """Return the smaller size, symbolic or not."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        size, other = (a, b) if isinstance(a, Tensor) else (b, a)
        return size.clamp(max=other)
    return torch.sym_min(a, b) if is_symbolic(a, b) else min(a, b)


def sym_max(a: int, b: int) -> int:
    """Return the larger size, symbolic or not."""
    return -sym_min(-a, -b)
