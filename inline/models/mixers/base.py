"""Base class of the attention mixers: projections, window partition, local terms."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from inline.models.layers import (
    MAX_WIDTH,
    LocallyEnhancedPosition,
    WindowPartition,
    full_map,
    is_marked_new,
    linear,
    returns_new_tensor,
    stripes,
    swin_windows,
)
from inline.ops.symint import statically_true
from inline.ops.tokens import ALL_QUERIES, add_to_map, zero_masked
from inline.utils.arguments import check_range, checked
from inline.utils.errors import UserError

# Sanity limit: larger values are almost certainly typos and would run out of memory.
MAX_WINDOW = 1024
# Computes queries and keys when they are needed.
MakeQK = Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class AttentionInputs:
    """Inputs of one attention: b windows of n tokens, with c of the C channels.

    Args:
        v: Values (b, n, c). With spatial reduction there are fewer keys and values than queries.
        make_qk: Computes the queries and keys (b, n, c). Called on first access, because not every
            attention needs them.
        num_heads: Number of heads that share the c channels, see :attr:`AttentionMixer.weight_heads`.
        windows: The window partition of the map.
        key_mask: (b, n), False for padding; None if there is none.
        channels: The slice of the C channels that these inputs cover.
        x: The tokens of the block (B, P + H·W, C), from which queries, keys and values are computed.
        prenorm_x: The same before the block's norm, for mixers that need it.
        queries_from_x: Whether the queries are computed from x as well, and not from other tokens.
    """

    v: Tensor
    make_qk: MakeQK
    num_heads: int
    windows: WindowPartition
    key_mask: Tensor | None
    channels: slice
    x: Tensor
    prenorm_x: Tensor | None
    queries_from_x: bool = True
    _qk: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False, repr=False)

    @property
    def hw(self) -> tuple[int, int]:
        """Height and width of a window; prefix tokens come before it."""
        return self.windows.window

    @property
    def tokens(self) -> Tensor:
        """The tokens of the block by window, (b, n, C)."""
        return self.windows.partition(self.x)

    @property
    def q(self) -> Tensor:
        """Queries (b, n, c)."""
        return self._compute_qk()[0]

    @property
    def k(self) -> Tensor:
        """Keys (b, n, c)."""
        return self._compute_qk()[1]

    def heads(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values as (b, heads, n, c / heads)."""
        heads = self.num_heads
        return split_heads(self.q, heads), split_heads(self.k, heads), split_heads(self.v, heads)

    def _compute_qk(self) -> tuple[Tensor, Tensor]:
        # A list instead of functools.cached_property, whose lock torch.compile cannot trace.
        if not self._qk:
            self._qk.append(self.make_qk())
        return self._qk[0]


class MixerOptions(TypedDict, total=False):
    """Options that every mixer passes on to :class:`AttentionMixer` as ``**shared``."""

    qkv_bias: bool
    window_size: int | None
    shift: bool
    wrap: bool
    split_size: int | None
    lepe: bool


class AttentionMixer(nn.Module, ABC):
    """Token mixer: q, k, v projection, attention within each window, local terms, output projection.

    Args:
        dim: Number of channels.
        num_heads: Number of attention heads.
        qkv_bias: Whether queries, keys and values have a bias.
        window_size: Side of Swin's windows; None for attention over the whole map.
        shift: Whether to shift the windows by half their side, unless they reach the map's shorter side.
        wrap: Whether shifted windows contain tokens of the opposite side of the map, as in Swin's cyclic
            shift; else windows at the border are smaller.
        split_size: Width of CSwin's stripes, vertical for one half of the heads and horizontal for the
            other half; None for no stripes.
        lepe: Whether to add CSwin's locally enhanced position term.
    """

    # Whether forward() needs the tokens before the block's norm as well.
    needs_prenorm_input = False
    # Properties that the contract tests (tests/models/test_contract.py) verify on the whole map.
    # Whether attend() and weights() are equivariant to permutations of the tokens.
    permutation_equivariant = True
    # Whether the cost is linear in the number of tokens, not quadratic.
    is_linear = True
    # How the weights of a query are normalised to sum to 1: scores divided by their sum, or minus their mean.
    # None where it is neither.
    normalization: Literal['division', 'subtraction'] | None = None

    @checked
    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool = True,
        window_size: int | None = None,
        shift: bool = False,
        wrap: bool = True,
        split_size: int | None = None,
        lepe: bool = False,
    ) -> None:
        super().__init__()
        check_range('dim', dim, 1, MAX_WIDTH)
        check_range('num_heads', num_heads, 1, dim)
        if dim % num_heads:
            raise UserError(f'num_heads {num_heads}: width {dim} is not divisible by {num_heads} heads')
        _check_windows(window_size, split_size, num_heads)
        self.num_heads = num_heads
        self.window_size = window_size
        self.shift = shift
        self.wrap = wrap
        self.split_size = split_size
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.lepe = LocallyEnhancedPosition(dim) if lepe else None
        # Computes a factor of the output before its projection from the tokens of the block.
        self.gate: nn.Module | None = None
        self.proj = nn.Linear(dim, dim)

    @property
    def weight_heads(self) -> int:
        """Number of weight matrices, over which the values are split evenly.

        More than ``num_heads`` if the channels of a head have different weights.
        """
        return self.num_heads

    @property
    def supports_prefix(self) -> bool:
        """Whether prefix tokens such as a class token may come before the tokens of the map."""
        return self.window_size is None and self.split_size is None

    @returns_new_tensor
    def forward(self, x: Tensor, hw: tuple[int, int], prenorm_x: Tensor | None = None) -> Tensor:
        """x (B, P + H·W, C), P prefix tokens first, to the same shape; prenorm_x is x before the norm."""
        outs = []
        for inputs in self.partition_inputs(x, hw, prenorm_x):
            out = self.attend(inputs)
            inplace = is_marked_new(self.attend)
            for term in self.local_terms(inputs):
                out = add_to_map(out, term, inplace)
            outs.append(inputs.windows.reverse(out))
        out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
        return linear(self.proj, out if self.gate is None else out * self.gate(x))

    def partition_inputs(
        self, x: Tensor, hw: tuple[int, int], prenorm_x: Tensor | None = None
    ) -> Iterator[AttentionInputs]:
        """Yield the inputs for each window partition; the channels are split evenly between them."""
        v, make_qk = self.project(x, hw)
        partitions = [windows.with_new_sizes(x) for windows in self.window_partitions(x, hw)]
        width = x.shape[-1] // len(partitions)
        for i, windows in enumerate(partitions):
            channels = slice(i * width, (i + 1) * width)
            yield AttentionInputs(
                v=windows.partition(take_channels(v, channels)),
                make_qk=partial(_partition_qk, make_qk, windows, channels),
                num_heads=self.weight_heads // len(partitions),
                windows=windows,
                key_mask=windows.key_mask(x.shape[0], x.device),
                channels=channels,
                x=x,
                prenorm_x=prenorm_x,
            )

    def project(self, x: Tensor, hw: tuple[int, int]) -> tuple[Tensor, MakeQK]:  # noqa: ARG002 (for subclasses)
        """Return values (B, P + H·W, C), and a function that computes queries and keys of the same shape."""
        q, k, v = linear(self.qkv, x).chunk(3, dim=-1)
        return v, lambda: (q, k)

    def window_partitions(self, x: Tensor, hw: tuple[int, int]) -> tuple[WindowPartition, ...]:
        """Return the window partitions of the map: one, or two for stripes."""
        if self.window_size is None and self.split_size is None:
            return (full_map(hw),)
        if statically_true(x.shape[1] != hw[0] * hw[1]):
            raise UserError('windows and stripes do not support a class token: use the whole map')
        if self.split_size is not None:
            return stripes(hw, self.split_size)
        return (swin_windows(hw, self.window_size or 0, self.shift, self.wrap),)

    @abstractmethod
    def attend(self, inputs: AttentionInputs) -> Tensor:
        """Return the attention output of each query, (b, n, c).

        Decorate an implementation with :func:`inline.models.layers.returns_new_tensor` if its result may
        be overwritten: local terms are then added in place.
        """

    def local(self, inputs: AttentionInputs) -> Tensor | None:  # noqa: ARG002 (for subclasses)
        """Return a term from the neighbours of each map token, (b, h·w, c); None for no term."""
        return None

    def local_terms(self, inputs: AttentionInputs) -> Iterator[Tensor]:
        """Yield the terms to add to the attention output of the map: ``local`` and LePE, each (b, h·w, c)."""
        local = self.local(inputs)
        if local is not None:
            yield local
        if self.lepe is not None:
            yield self.lepe(self.local_values(inputs), inputs.hw, inputs.channels)

    def local_values(self, inputs: AttentionInputs) -> Tensor:
        """Return the values that LePE convolves, (b, P + h·w, c), zero at padding."""
        return zero_masked(inputs.v, inputs.key_mask)

    @abstractmethod
    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        """Return the weight of each key for the selected queries, (b, heads, M, N), by the naive reference.

        These are the weights of the attention without local terms and gate: applied to the values they give
        ``attend(inputs)``. There are ``inputs.num_heads`` of them.
        """


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, N, heads·d) → (B, heads, N, d)."""
    return x.view(*x.shape[:-1], num_heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, N, d) → (B, N, heads·d)."""
    return x.transpose(1, 2).flatten(2)


def take_channels(x: Tensor, channels: slice, dim: int = -1) -> Tensor:
    """Return the slice of a dimension of x; x itself if that is all, which saves the time of an operator."""
    width = channels.stop - channels.start
    return x if x.shape[dim] == width else x.narrow(dim, channels.start, width)


def _partition_qk(make_qk: MakeQK, windows: WindowPartition, channels: slice) -> tuple[Tensor, Tensor]:
    q, k = make_qk()
    return windows.partition(take_channels(q, channels)), windows.partition(take_channels(k, channels))


def _check_windows(window_size: int | None, split_size: int | None, num_heads: int) -> None:
    for name, value in (('window_size', window_size), ('split_size', split_size)):
        if value is not None:
            check_range(name, value, 1, MAX_WINDOW, ', or None for the whole map')
    if window_size is not None and split_size is not None:
        raise UserError(f'window_size {window_size} and split_size {split_size}: give only one of them')
    if split_size is not None and num_heads % 2:
        raise UserError(f'num_heads {num_heads}: stripes need an even number of heads')
