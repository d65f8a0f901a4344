"""What all attention mixers share: projections, the regions that tokens attend within, LePE."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from inline.arguments import check_range, checked
from inline.errors import UserError
from inline.models.layers import LocallyEnhancedPosition, Regions, square_windows, stripes, whole_map
from inline.models.limits import MAX_WIDTH, MAX_WINDOW
from inline.models.mixers.heads import split_heads
from inline.ops.masking import zero_masked
from inline.ops.places import ALL_QUERIES, add_to_map

# Makes queries and keys once they are needed.
MakeQK = Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Part:
    """What one kind of regions works on: b regions of n tokens, with c of the C channels.

    Args:
        v: Values (b, n, c); spatial reduction leaves fewer of them, as of keys.
        make_qk: Makes the queries and keys (b, n, c). It is called when they are asked for: not every
            attention needs them.
        num_heads: Heads that the c channels make.
        regions: How the map was cut.
        key_mask: (b, n), False for padded places; None if there are none.
        channels: Which of all channels these are.
        x: The block's tokens (B, P + H·W, C) that queries, keys and values are made from.
        unnormed: The same before the block's norm, for mixers that take it.
        queries_of_x: Whether the queries are made from x, too, and not from other tokens.
    """

    v: Tensor
    make_qk: MakeQK
    num_heads: int
    regions: Regions
    key_mask: Tensor | None
    channels: slice
    x: Tensor
    unnormed: Tensor | None
    queries_of_x: bool = True
    _made: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False, repr=False)

    @property
    def hw(self) -> tuple[int, int]:
        """Height and width of a region; prefix tokens come before it."""
        return self.regions.window

    @property
    def tokens(self) -> Tensor:
        """The block's tokens by region, (b, n, C)."""
        return self.regions.cut(self.x)

    @property
    def q(self) -> Tensor:
        """Queries (b, n, c)."""
        return self._make()[0]

    @property
    def k(self) -> Tensor:
        """Keys (b, n, c)."""
        return self._make()[1]

    def heads(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as (b, heads, n, c / heads)."""
        heads = self.num_heads
        return split_heads(self.q, heads), split_heads(self.k, heads), split_heads(self.v, heads)

    def _make(self) -> tuple[Tensor, Tensor]:
        # A list instead of functools.cached_property, whose lock torch.compile cannot trace.
        if not self._made:
            self._made.append(self.make_qk())
        return self._made[0]


class MixerOptions(TypedDict, total=False):
    """What a mixer with options of its own hands on, as ``**shared``, to :class:`AttentionMixer`."""

    qkv_bias: bool
    window_size: int | None
    shift: bool
    wrap: bool
    split_size: int | None
    lepe: bool


class AttentionMixer(nn.Module, ABC):
    """Queries, keys and values of every token, attention within each region of the map, a projection.

    Args:
        dim: Channels of a token.
        num_heads: Heads of the attention.
        qkv_bias: Whether queries, keys and values have a bias.
        window_size: Side of Swin's windows; None for the whole map.
        shift: Whether the windows are moved by half their side, unless they reach the map's shorter side.
        wrap: Whether shifted windows hold tokens of the opposite side of the map, as Swin's cyclic shift
            makes them; else windows at the border are smaller.
        split_size: Width of CSwin's stripes: upright ones for one half of the heads, level ones for the
            other half; None for no stripes.
        lepe: Whether to add CSwin's locally enhanced position term.
    """

    # Whether forward() also takes the tokens as they were before the block's norm.
    takes_unnormed = False
    # What the contract tests (tests/models/test_contract.py) hold a mixer to, on the whole map:
    # attend() and weights() do not depend on where tokens stand,
    position_free = True
    # and the cost is linear in the number of tokens, not quadratic.
    linear_cost = True
    # What makes the weights of a query sum to 1, each key's score being its own affair: division by the
    # sum of scores, or subtraction of their mean. None where it is neither.
    normalisation: Literal['division', 'subtraction'] | None = None

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
        _check_regions(window_size, split_size, num_heads)
        self.num_heads = num_heads
        self.window_size = window_size
        self.shift = shift
        self.wrap = wrap
        self.split_size = split_size
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.lepe = LocallyEnhancedPosition(dim) if lepe else None
        self.proj = nn.Linear(dim, dim)

    @property
    def takes_prefix(self) -> bool:
        """Whether tokens without a place on the map may come first, such as a class token."""
        return self.window_size is None and self.split_size is None

    def forward(self, x: Tensor, hw: tuple[int, int], unnormed: Tensor | None = None) -> Tensor:
        """x (B, P + H·W, C), P prefix tokens first, to the same shape; unnormed is x before the norm."""
        outs = []
        for part in self.parts(x, hw, unnormed):
            out = self.attend(part)
            for term in self.local_terms(part):
                out = add_to_map(out, term)
            outs.append(part.regions.join(out))
        return self.proj(outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1))

    def parts(self, x: Tensor, hw: tuple[int, int], unnormed: Tensor | None = None) -> Iterator[Part]:
        """One part for each kind of regions, with its share of the channels."""
        v, make_qk = self.project(x, hw)
        kinds = self.regions(x, hw)
        width = x.shape[-1] // len(kinds)
        for i, regions in enumerate(kinds):
            channels = slice(i * width, (i + 1) * width)
            yield Part(
                v=regions.cut(v[..., channels]),
                make_qk=partial(_cut_pair, make_qk, regions, channels),
                num_heads=self.num_heads // len(kinds),
                regions=regions,
                key_mask=regions.key_mask(x.shape[0], x.device),
                channels=channels,
                x=x,
                unnormed=unnormed,
            )

    def project(self, x: Tensor, hw: tuple[int, int]) -> tuple[Tensor, MakeQK]:  # noqa: ARG002 (for reduced maps)
        """Values (B, P + H·W, C), and what makes queries and keys of the same shape."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return v, lambda: (q, k)

    def regions(self, x: Tensor, hw: tuple[int, int]) -> tuple[Regions, ...]:
        """The kinds of regions; the channels are shared out among them evenly."""
        if self.window_size is None and self.split_size is None:
            return (whole_map(hw),)
        if x.shape[1] != hw[0] * hw[1]:
            raise UserError('windows and stripes have no place for a class token: use the whole map')
        if self.split_size is not None:
            return stripes(hw, self.split_size)
        return (square_windows(hw, self.window_size or 0, self.shift, self.wrap),)

    @abstractmethod
    def attend(self, part: Part) -> Tensor:
        """What each query of a part gets by attention, (b, n, c)."""

    def local(self, part: Part) -> Tensor | None:  # noqa: ARG002 (for mixers that have one)
        """What each token of a part's map gets from its neighbours besides, (b, h·w, c); None for nothing."""
        return None

    def local_terms(self, part: Part) -> Iterator[Tensor]:
        """All that is added to what a part's map gets by attention: ``local`` and LePE, each (b, h·w, c)."""
        local = self.local(part)
        if local is not None:
            yield local
        if self.lepe is not None:
            yield self.lepe(zero_masked(part.v, part.key_mask), part.hw, part.channels)

    @abstractmethod
    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:
        """What the chosen queries of a part give each of its keys, (b, heads, M, N), by the naive twin.

        The attention alone, without local terms: the weights applied to the values are ``attend(part)``.
        """


def _cut_pair(make_qk: MakeQK, regions: Regions, channels: slice) -> tuple[Tensor, Tensor]:
    q, k = make_qk()
    return regions.cut(q[..., channels]), regions.cut(k[..., channels])


def _check_regions(window_size: int | None, split_size: int | None, num_heads: int) -> None:
    for name, value in (('window_size', window_size), ('split_size', split_size)):
        if value is not None:
            check_range(name, value, 1, MAX_WINDOW, ', or None for the whole map')
    if window_size is not None and split_size is not None:
        raise UserError(f'window_size {window_size} and split_size {split_size}: give only one of them')
    if split_size is not None and num_heads % 2:
        raise UserError(f'stripes need an even number of heads: there are {num_heads}')
