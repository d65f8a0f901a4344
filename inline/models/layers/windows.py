"""Window partition: windows, shifted windows and stripes within which tokens attend."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.models.layers.fast_paths import cache_by_size
from inline.ops.symint import ceil_div, is_symbolic, new_sizes, statically_true, sym_max, sym_min

# Value of padded positions. It must not affect any result: tests set it to NaN. An integer, because
# torch.compile(dynamic=True) does not treat float globals as constants.
PAD_VALUE: float = 0


@dataclass(frozen=True)
class WindowPartition:
    """Partition of a map of ``hw`` tokens into windows of equal size.

    A map whose sides are not multiples of the window is padded; padded positions are masked as keys.
    Windows shifted by ``shift`` reach beyond the border: with ``wrap`` they contain tokens of the opposite
    side there, as in Swin's cyclic shift, else padding.
    """

    hw: tuple[int, int]
    window: tuple[int, int]
    shift: tuple[int, int] = (0, 0)
    wrap: bool = True
    # Rows and columns of windows, and whether windows contain padding; None to compute them. With symbols of
    # their own, sizes cannot be compared.
    grid: tuple[int, int] | None = None
    has_padding: bool | None = None

    @property
    def is_full_map(self) -> bool:
        """Whether a single window covers the map, so that partition and reverse do nothing."""
        return _same(self.window, self.hw) and _same(self.shift, (0, 0))

    @property
    def is_symbolic(self) -> bool:
        """Whether a size is symbolic, see :mod:`inline.ops.symint`."""
        return is_symbolic(*self.hw, *self.window)

    @property
    def is_padded(self) -> bool:
        """Whether windows contain padding."""
        if self.is_full_map:
            return False
        return not _same(self.hw, self._padded) if self.has_padding is None else self.has_padding

    @property
    def num_windows(self) -> int:
        """Number of windows per image."""
        rows, columns = self.grid or self._count_windows()
        return rows * columns

    def partition(self, x: Tensor, fill: float | None = None) -> Tensor:
        """(B, H·W, C) → (B·num_windows, h·w, C), the windows of an image in row-major order."""
        if self.is_full_map:
            return x
        if self.is_symbolic:
            if _is_compiling():
                fill = PAD_VALUE if fill is None else fill
                out: Tensor = torch.ops.inline.window_partition(x, self._sizes, self.wrap, fill)
                return out
            rows, columns = self._source_coordinates(x.device)
            index = rows.clamp(0, self.hw[0] - 1) * self.hw[1] + columns.clamp(0, self.hw[1] - 1)
            x = x.index_select(1, index)
            return x.reshape(x.shape[0] * self.num_windows, self.window[0] * self.window[1], x.shape[2])
        x = x.unflatten(1, self.hw)
        (top, left), (height, width) = self._offset, self._padded
        bottom, right = height - top - self.hw[0], width - left - self.hw[1]
        if self.is_padded:
            x = F.pad(x, (0, 0, left, right, top, bottom), value=PAD_VALUE if fill is None else fill)
        x = self._roll(x, -1)
        x = x.unflatten(2, (-1, self.window[1])).unflatten(1, (-1, self.window[0]))
        return x.transpose(2, 3).flatten(0, 2).flatten(1, 2)

    def reverse(self, windows: Tensor) -> Tensor:
        """(B·num_windows, h·w, C) → (B, H·W, C), without padding."""
        if self.is_full_map:
            return windows
        if self.is_symbolic:
            if _is_compiling():
                out: Tensor = torch.ops.inline.window_reverse(windows, self._sizes, self.wrap)
                return out
            x = windows.reshape(-1, self.num_windows * self.window[0] * self.window[1], windows.shape[2])
            return x.index_select(1, self._target_indices(windows.device))
        (top, left), (height, width) = self._offset, self._padded
        rows, columns = height // self.window[0], width // self.window[1]
        x = windows.unflatten(1, self.window).unflatten(0, (-1, rows, columns))
        x = self._roll(x.transpose(2, 3).flatten(3, 4).flatten(1, 2), 1)
        return x[:, top : top + self.hw[0], left : left + self.hw[1]].flatten(1, 2)

    def key_mask(self, batch: int, device: torch.device) -> Tensor | None:
        """Return (batch·num_windows, h·w), True for tokens of the map; None if there is no padding."""
        if not self.is_padded:
            return None
        return self._mask(False, device).repeat(batch, 1)

    def attention_mask(self, device: torch.device) -> Tensor | None:
        """Return (num_windows, h·w, h·w), True where a query may attend to a key; None if everywhere.

        Padding is masked, and so are pairs that are only adjacent because the shift wrapped one of them
        around the border. A padded query attends to itself, so that no row is fully masked.
        """
        if not self.is_padded and not self._is_wrapped:
            return None
        return self._mask(True, device)

    def _mask(self, of_pairs: bool, device: torch.device) -> Tensor:
        if self.is_symbolic and _is_compiling():
            return _mask_op(self._sizes, self.wrap, of_pairs, device)
        make = self._attention_mask if of_pairs else self._map_mask
        if self.is_symbolic:
            return make(device)
        return cache_by_size(('window mask', of_pairs, self, device), lambda: make(device))

    def _attention_mask(self, device: torch.device) -> Tensor:
        allowed = self._map_mask(device)[:, None, :]
        if self._is_wrapped:
            side = self._wrapped_sides(device)
            allowed = allowed & (side[:, :, None] == side[:, None, :])
        return allowed | torch.eye(self.window[0] * self.window[1], dtype=torch.bool, device=device)

    @property
    def _is_wrapped(self) -> bool:
        return self.wrap and not _same(self.shift, (0, 0))

    @property
    def _offset(self) -> tuple[int, int]:
        """Padding at the top and the left: without wrapping, shifted windows start outside the map."""
        if self.wrap:
            return 0, 0
        (h, w), (down, right) = self.window, self.shift
        return (h - down) % h, (w - right) % w

    @property
    def _padded(self) -> tuple[int, int]:
        """Height and width of the padded map, multiples of the window."""
        rows, columns = zip(self.hw, self.window, self._offset, strict=True)
        return _padded_side(*rows), _padded_side(*columns)

    def with_new_sizes(self, x: Tensor) -> 'WindowPartition':
        """Return the partition for the tokens x of a block; torch.compile gets new symbols for its sizes."""
        if self.is_full_map or not (self.is_symbolic and _is_compiling()):
            return self
        h, w, down, right, rows, columns = new_sizes(x, *self.window, *self.shift, *self._count_windows())
        return replace(
            self, window=(h, w), shift=(down, right), grid=(rows, columns), has_padding=self.is_padded
        )

    def _count_windows(self) -> tuple[int, int]:
        """Return the number of rows and of columns of windows."""
        height, width = self._padded
        return height // self.window[0], width // self.window[1]

    @property
    def _sizes(self) -> list[int]:
        """Sizes of the map, a window, the shift and the grid of windows: arguments of the operators below."""
        return [*self.hw, *self.window, *self.shift, *(self.grid or self._count_windows())]

    def _roll(self, x: Tensor, sign: int) -> Tensor:
        if not self._is_wrapped:
            return x
        return x.roll((sign * self.shift[0], sign * self.shift[1]), dims=(1, 2))

    def _map_mask(self, device: torch.device) -> Tensor:
        """(num_windows, h·w), True for tokens of the map."""
        rows, columns = self._source_coordinates(device)
        inside = (rows >= 0) & (rows < self.hw[0]) & (columns >= 0) & (columns < self.hw[1])
        return self._by_window(inside)

    def _wrapped_sides(self, device: torch.device) -> Tensor:
        """(num_windows, h·w), the borders a token was wrapped around: 0 none, 1 top, 2 left, 3 both."""
        rows, columns = self._source_coordinates(device)
        return self._by_window((rows < self.shift[0]).long() + 2 * (columns < self.shift[1]).long())

    # Masks are built, and with symbolic sizes windows gathered, by flat indices. For views and slices,
    # torch.export would have to prove that they fit for every size, which it cannot.
    def _source_coordinates(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and column of the map for each position of each window, (num_windows·h·w).

        Coordinates of padding are outside the map.
        """
        (h, w), across = self.window, self._padded[1] // self.window[1]
        position = torch.arange(self.num_windows * h * w, device=device)
        number = position // (h * w)
        inside = _remainder(position, h * w)
        rows = number // across * h + inside // w
        columns = _remainder(number, across) * w + _remainder(inside, w)
        if self.wrap:
            (down, right), (height, width) = self.shift, self._padded
            return _remainder(rows + down, height), _remainder(columns + right, width)
        return rows - self._offset[0], columns - self._offset[1]

    def _by_window(self, x: Tensor) -> Tensor:
        """(num_windows·h·w) → (num_windows, h·w)."""
        return x.unflatten(0, (self.num_windows, self.window[0] * self.window[1]))

    def _target_indices(self, device: torch.device) -> Tensor:
        """Flat index into the windows for each token of the map, (H·W)."""
        (h, w), across = self.window, self._padded[1] // self.window[1]
        rows, columns = (
            _remainder(torch.arange(side, device=device) + (padded - shift), padded)
            if self.wrap
            else torch.arange(side, device=device) + offset
            for side, padded, shift, offset in zip(
                self.hw, self._padded, self.shift, self._offset, strict=True
            )
        )
        of_row = rows // h * (across * h * w) + _remainder(rows, h) * w
        of_column = columns // w * (h * w) + _remainder(columns, w)
        return (of_row[:, None] + of_column).flatten()


class _FullMap(WindowPartition):
    """A single window that covers the map. Skips the checks, which take noticeable time on small maps."""

    is_full_map = True
    is_padded = False
    num_windows = 1

    def partition(self, x: Tensor, fill: float | None = None) -> Tensor:  # noqa: ARG002 (nothing to fill)
        return x

    def reverse(self, windows: Tensor) -> Tensor:
        return windows


def full_map(hw: tuple[int, int]) -> WindowPartition:
    """Return a single window that covers the map."""
    return _FullMap(hw, hw)


def swin_windows(hw: tuple[int, int], size: int, shifted: bool, wrap: bool = True) -> WindowPartition:
    """Return Swin's windows: at most as large as the map's shorter side, and then not shifted."""
    shorter = sym_min(*hw)
    shift = size // 2 if shifted else 0
    if statically_true(size < shorter):
        return WindowPartition(hw, (size, size), (shift, shift), wrap)
    if not is_symbolic(*hw):
        return WindowPartition(hw, (shorter, shorter))
    # 1 if the map is larger than a window, else 0, as an expression that holds for every size.
    larger = sym_min(1, sym_max(shorter - size, 0))
    side = sym_min(size, shorter)
    return WindowPartition(hw, (side, side), (shift * larger, shift * larger), wrap)


def stripes(hw: tuple[int, int], width: int) -> tuple[WindowPartition, WindowPartition]:
    """Return CSwin's cross-shaped windows: stripes of full height, and stripes of full width."""
    height, full_width = hw
    if is_symbolic(*hw):
        # A stripe may be wider than the map: the padding has no effect.
        return WindowPartition(hw, (height, width)), WindowPartition(hw, (width, full_width))
    return (
        WindowPartition(hw, (height, min(width, full_width))),
        WindowPartition(hw, (min(width, height), full_width)),
    )


# For torch.compile with dynamic sizes, partition, reverse and masks are opaque custom operators with known
# output shapes: tracing and simplifying the expressions for padded and shifted maps of every size takes
# minutes. Fixed sizes use the views.
def _is_compiling() -> bool:
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


torch.library.define(
    'inline::window_partition', '(Tensor x, SymInt[] sizes, bool wrap, float fill) -> Tensor'
)
torch.library.define('inline::window_reverse', '(Tensor windows, SymInt[] sizes, bool wrap) -> Tensor')


@torch.library.impl('inline::window_partition', 'default')
def _(x: Tensor, sizes: Sequence[int], wrap: bool, fill: float) -> Tensor:
    return _dense_copy(_windows(*sizes, wrap).partition(x, fill), x)


@torch.library.register_fake('inline::window_partition')
def _(x: Tensor, sizes: Sequence[int], wrap: bool, fill: float) -> Tensor:  # noqa: ARG001 (no effect on the shape)
    count, tokens = _shape(sizes)
    return x.new_empty(x.shape[0] * count, tokens, x.shape[2])


@torch.library.impl('inline::window_reverse', 'default')
def _(windows: Tensor, sizes: Sequence[int], wrap: bool) -> Tensor:
    return _dense_copy(_windows(*sizes, wrap).reverse(windows), windows)


@torch.library.register_fake('inline::window_reverse')
def _(windows: Tensor, sizes: Sequence[int], wrap: bool) -> Tensor:  # noqa: ARG001 (no effect on the shape)
    return windows.new_empty(windows.shape[0] // _shape(sizes)[0], sizes[0] * sizes[1], windows.shape[2])


def _save_sizes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's signature)
    ctx.sizes = inputs[1:3]


# Padding has no gradient, so each operator is the other's backward.
torch.library.register_autograd(
    'inline::window_partition',
    lambda ctx, grad: (torch.ops.inline.window_reverse(grad, *ctx.sizes), *[None] * 3),
    setup_context=_save_sizes,
)
torch.library.register_autograd(
    'inline::window_reverse',
    lambda ctx, grad: (torch.ops.inline.window_partition(grad, *ctx.sizes, 0.0), *[None] * 2),
    setup_context=_save_sizes,
)


@torch.library.custom_op('inline::window_mask', mutates_args=())
def _mask_op(sizes: Sequence[int], wrap: bool, of_pairs: bool, device: torch.device) -> Tensor:
    # A copy, because an operator must not return a tensor that is cached.
    return _windows(*sizes, wrap)._mask(of_pairs, device).clone()


@_mask_op.register_fake
def _(sizes: Sequence[int], wrap: bool, of_pairs: bool, device: torch.device) -> Tensor:  # noqa: ARG001
    count, tokens = _shape(sizes)
    return torch.empty(count, *[tokens] * (1 + of_pairs), dtype=torch.bool, device=device)


@lru_cache(maxsize=256)
def _windows(
    height: int, width: int, h: int, w: int, down: int, right: int, rows: int, columns: int, wrap: bool
) -> WindowPartition:
    """Return the partition with the sizes of :attr:`WindowPartition._sizes`."""
    windows = WindowPartition((height, width), (h, w), (down, right), wrap, (rows, columns))
    return replace(windows, has_padding=windows.is_padded)


def _shape(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the number of windows and of tokens in each."""
    return sizes[6] * sizes[7], sizes[2] * sizes[3]


def _dense_copy(result: Tensor, source: Tensor) -> Tensor:
    """Return the result contiguous and not sharing memory with the source, as custom operators require."""
    shared = result.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    return result.clone() if shared else result.contiguous()


def _padded_side(side: int, window: int, offset: int) -> int:
    """Return offset + side, rounded up to a multiple of the window."""
    # torch.export does not simplify the expression below for a window that is as long as the side.
    if statically_true(side == window) and statically_true(offset == 0):
        return side
    return ceil_div(side + offset, window) * window


def _same(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Return whether two sizes are equal for every value of their symbols."""
    return statically_true(a[0] == b[0]) and statically_true(a[1] == b[1])


def _remainder(x: Tensor, divisor: int) -> Tensor:
    """Return x % divisor for x ≥ 0. PyTorch's ONNX exporter does not support % with a symbolic size."""
    return x - x // divisor * divisor
