"""Cutting a map into the regions within which tokens attend: windows, shifted windows, stripes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.open_sizes import ceil_div, is_open, known, smallest

# What stands in a padded place. It must never matter: tests put NaN here.
PAD_VALUE = 0.0


@dataclass(frozen=True)
class Regions:
    """A map of ``hw`` tokens cut into windows of equal size.

    A map that is not a whole number of windows is padded; the padded places are not keys. Windows
    moved by ``shift`` reach beyond the border: with ``wrap`` they hold the tokens of the opposite side
    there, as Swin's cyclic shift does, else nothing.
    """

    hw: tuple[int, int]
    window: tuple[int, int]
    shift: tuple[int, int] = (0, 0)
    wrap: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether one window is the whole map, so that there is nothing to cut."""
        return _same(self.window, self.hw) and _same(self.shift, (0, 0))

    @property
    def is_open(self) -> bool:
        """Whether its numbers are left open, see :mod:`inline.ops.open_sizes`."""
        return is_open(*self.hw, *self.window)

    @property
    def is_padded(self) -> bool:
        """Whether windows hold places that are not of the map."""
        return not self.is_whole and not _same(self.hw, self._padded)

    @property
    def count(self) -> int:
        """Windows of one image."""
        height, width = self._padded
        return (height // self.window[0]) * (width // self.window[1])

    def cut(self, x: Tensor, fill: float | None = None) -> Tensor:
        """(B, H·W, C) → (B·count, h·w, C), the windows of an image one after another."""
        if self.is_whole:
            return x
        if _compiles():
            return _cut(x, *self._numbers, self.wrap, PAD_VALUE if fill is None else fill)
        if self.is_open:
            rows, columns = self._sources(x.device)
            places = rows.clamp(0, self.hw[0] - 1) * self.hw[1] + columns.clamp(0, self.hw[1] - 1)
            x = x.index_select(1, places)
            return x.reshape(x.shape[0] * self.count, self.window[0] * self.window[1], x.shape[2])
        x = x.unflatten(1, self.hw)
        (top, left), (height, width) = self._offset, self._padded
        below, right = height - top - self.hw[0], width - left - self.hw[1]
        if self.is_padded:
            x = F.pad(x, (0, 0, left, right, top, below), value=PAD_VALUE if fill is None else fill)
        x = self._roll(x, -1)
        x = x.unflatten(2, (-1, self.window[1])).unflatten(1, (-1, self.window[0]))
        return x.transpose(2, 3).flatten(0, 2).flatten(1, 2)

    def join(self, windows: Tensor) -> Tensor:
        """(B·count, h·w, C) → (B, H·W, C), the padding left out."""
        if self.is_whole:
            return windows
        if _compiles():
            return _join(windows, *self._numbers, self.wrap)
        if self.is_open:
            x = windows.reshape(-1, self.count * self.window[0] * self.window[1], windows.shape[2])
            return x.index_select(1, self._targets(windows.device))
        (top, left), (height, width) = self._offset, self._padded
        rows, columns = height // self.window[0], width // self.window[1]
        x = windows.unflatten(1, self.window).unflatten(0, (-1, rows, columns))
        x = self._roll(x.transpose(2, 3).flatten(3, 4).flatten(1, 2), 1)
        return x[:, top : top + self.hw[0], left : left + self.hw[1]].flatten(1, 2)

    def key_mask(self, batch: int, device: torch.device) -> Tensor | None:
        """(batch·count, h·w), True for tokens of the map; None if nothing was padded."""
        if not self.is_padded:
            return None
        return self._on_map(device).repeat(batch, 1)

    def pairs(self, device: torch.device) -> Tensor | None:
        """(count, h·w, h·w), True where a token may attend to another; None if everywhere.

        Those are tokens of the map that were neighbours before the shift wrapped them around. A padded
        place sees itself, so that no row is without a key.
        """
        masks = []
        if self.is_padded:
            masks.append(self._on_map(device)[:, None, :])
        if self.wrap and not _same(self.shift, (0, 0)):
            part = self._wrapped(device)
            masks.append(part[:, :, None] == part[:, None, :])
        if not masks:
            return None
        allowed = masks[0] if len(masks) == 1 else masks[0] & masks[1]
        return allowed | torch.eye(self.window[0] * self.window[1], dtype=torch.bool, device=device)

    @property
    def _offset(self) -> tuple[int, int]:
        """Padding above and to the left: where nothing wraps, the first windows begin beyond the border."""
        if self.wrap:
            return 0, 0
        (h, w), (down, right) = self.window, self.shift
        return (h - down) % h, (w - right) % w

    @property
    def _padded(self) -> tuple[int, int]:
        """Height and width of the padded map, a whole number of windows."""
        (h, w), (top, left) = self.window, self._offset
        return ceil_div(self.hw[0] + top, h) * h, ceil_div(self.hw[1] + left, w) * w

    @property
    def _numbers(self) -> tuple[list[int], list[int], list[int]]:
        """All sizes, as the operators below take them."""
        return list(self.hw), list(self.window), list(self.shift)

    def _roll(self, x: Tensor, sign: int) -> Tensor:
        if not self.wrap or _same(self.shift, (0, 0)):
            return x
        return x.roll((sign * self.shift[0], sign * self.shift[1]), dims=(1, 2))

    def _on_map(self, device: torch.device) -> Tensor:
        """(count, h·w), True for tokens of the map."""
        if self.is_open:
            rows, columns = self._sources(device)
            inside = (rows >= 0) & (rows < self.hw[0]) & (columns >= 0) & (columns < self.hw[1])
            return self._by_window(inside)
        everywhere = torch.ones(1, self.hw[0] * self.hw[1], 1, device=device)
        return self.cut(everywhere, fill=0).squeeze(-1) > 0

    def _wrapped(self, device: torch.device) -> Tensor:
        """(count, h·w), which borders a token was wrapped around: 0 none, 1 one axis, 2 the other, 3 both."""
        if self.is_open:
            rows, columns = self._sources(device)
            return self._by_window((rows < self.shift[0]).long() + 2 * (columns < self.shift[1]).long())
        height, width = self._padded
        rows = (torch.arange(height, device=device) < self.shift[0]).float()
        columns = (torch.arange(width, device=device) < self.shift[1]).float()
        whole = Regions(self._padded, self.window, self.shift)
        return whole.cut((rows[:, None] + 2 * columns[None, :]).flatten()[None, :, None]).squeeze(-1)

    # Where sizes are left open, windows are cut and joined by the numbers of places, all in one row: of views
    # and slices torch.export would have to prove for every size that they fit, and it cannot.
    def _sources(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and column of the map for each place of each window, (count·h·w); padding has none of it."""
        (h, w), across = self.window, self._padded[1] // self.window[1]
        places = torch.arange(self.count * h * w, device=device)
        number = places // (h * w)
        inside = _rest(places, h * w)
        rows, columns = number // across * h + inside // w, _rest(number, across) * w + _rest(inside, w)
        if self.wrap:
            (down, right), (height, width) = self.shift, self._padded
            return _rest(rows + down, height), _rest(columns + right, width)
        return rows - self._offset[0], columns - self._offset[1]

    def _by_window(self, places: Tensor) -> Tensor:
        """(count·h·w) → (count, h·w)."""
        return places.unflatten(0, (self.count, self.window[0] * self.window[1]))

    def _targets(self, device: torch.device) -> Tensor:
        """For each token of the map its place among those of all windows, (H·W)."""
        (h, w), across = self.window, self._padded[1] // self.window[1]
        rows, columns = (
            _rest(torch.arange(side, device=device) + (padded - shift), padded)
            if self.wrap
            else torch.arange(side, device=device) + offset
            for side, padded, shift, offset in zip(
                self.hw, self._padded, self.shift, self._offset, strict=True
            )
        )
        of_row = rows // h * (across * h * w) + _rest(rows, h) * w
        of_column = columns // w * (h * w) + _rest(columns, w)
        return (of_row[:, None] + of_column).flatten()


class _WholeMap(Regions):
    """One window that is the whole map: nothing to ask, which on small maps takes longer than the answer."""

    is_whole = True
    is_padded = False
    count = 1

    def cut(self, x: Tensor, fill: float | None = None) -> Tensor:  # noqa: ARG002 (nothing to fill)
        return x

    def join(self, windows: Tensor) -> Tensor:
        return windows


def whole_map(hw: tuple[int, int]) -> Regions:
    return _WholeMap(hw, hw)


def square_windows(hw: tuple[int, int], size: int, shifted: bool, wrap: bool = True) -> Regions:
    """Swin's windows: no larger than the map's shorter side, and not shifted where they reach that."""
    shorter = smallest(*hw)
    shift = size // 2 if shifted else 0
    if known(size < shorter):
        return Regions(hw, (size, size), (shift, shift), wrap)
    if not is_open(*hw):
        return Regions(hw, (shorter, shorter))
    # For all sizes at once: 1 where the map is larger than a window, else 0.
    larger = smallest(1, torch.sym_max(shorter - size, 0))
    side = smallest(size, shorter)
    return Regions(hw, (side, side), (shift * larger, shift * larger), wrap)


def stripes(hw: tuple[int, int], width: int) -> tuple[Regions, Regions]:
    """CSwin's cross: stripes of full height, and stripes of full width."""
    height, full_width = hw
    if is_open(*hw):
        # Stripes wider than the map: the padding beside it changes nothing.
        return Regions(hw, (height, width)), Regions(hw, (width, full_width))
    return (
        Regions(hw, (height, min(width, full_width))),
        Regions(hw, (min(width, height), full_width)),
    )


# To torch.compile cutting and joining are one operator each, of which it knows the shapes alone. Step by step
# it would have to prove for every size that views of padded and moved maps fit, which takes it minutes.
def _compiles() -> bool:
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


@torch.library.custom_op('inline::cut_regions', mutates_args=())
def _cut(
    x: Tensor, hw: Sequence[int], window: Sequence[int], shift: Sequence[int], wrap: bool, fill: float
) -> Tensor:
    return _own(_regions(hw, window, shift, wrap).cut(x, fill), x)


@_cut.register_fake
def _(
    x: Tensor,
    hw: Sequence[int],
    window: Sequence[int],
    shift: Sequence[int],
    wrap: bool,
    fill: float,  # noqa: ARG001 (of no shape)
) -> Tensor:
    count = _regions(hw, window, shift, wrap).count
    return x.new_empty(x.shape[0] * count, window[0] * window[1], x.shape[2])


@torch.library.custom_op('inline::join_regions', mutates_args=())
def _join(
    windows: Tensor, hw: Sequence[int], window: Sequence[int], shift: Sequence[int], wrap: bool
) -> Tensor:
    return _own(_regions(hw, window, shift, wrap).join(windows), windows)


@_join.register_fake
def _(windows: Tensor, hw: Sequence[int], window: Sequence[int], shift: Sequence[int], wrap: bool) -> Tensor:
    batch = windows.shape[0] // _regions(hw, window, shift, wrap).count
    return windows.new_empty(batch, hw[0] * hw[1], windows.shape[2])


def _keep_numbers(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (what torch calls)
    ctx.numbers = inputs[1:5]


# Padded places lead nowhere, so each is the other's gradient.
_cut.register_autograd(
    lambda ctx, grad: (_join(grad, *ctx.numbers), *[None] * 5), setup_context=_keep_numbers
)
_join.register_autograd(
    lambda ctx, grad: (_cut(grad, *ctx.numbers, 0.0), *[None] * 4), setup_context=_keep_numbers
)


def _regions(hw: Sequence[int], window: Sequence[int], shift: Sequence[int], wrap: bool) -> Regions:
    return Regions((hw[0], hw[1]), (window[0], window[1]), (shift[0], shift[1]), wrap)


def _own(result: Tensor, source: Tensor) -> Tensor:
    """An operator's result is dense and shares no memory with what it was made from."""
    shared = result.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    return result.clone() if shared else result.contiguous()


def _same(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two sizes are equal whatever numbers are left open."""
    return known(a[0] == b[0]) and known(a[1] == b[1])


def _rest(x: Tensor, divisor: int) -> Tensor:
    """What is left of numbers from 0 on; torch's ONNX exporter has no % of a tensor and an open size."""
    return x - x // divisor * divisor
