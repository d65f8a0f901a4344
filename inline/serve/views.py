"""An image as a model sees it: after the config's test pipeline, with the way back to the image itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mmengine.dataset import pseudo_collate
from numpy.typing import NDArray

from inline.analysis.subjects import Batch
from inline.errors import UserError

# Values of the ramp that an interpolation at its ends may have bent.
_BENT = 8


@dataclass(frozen=True)
class Axis:
    """Where the pixels of one side come from: the centre of pixel i shows the place start + step·(i + ½)
    of the image's side, counted from 0 to 1."""

    start: float
    step: float
    pixels: int

    def find(self, place: float) -> int | None:
        """The pixel that shows a place; None if it is cut off."""
        pixel = int(np.floor((place - self.start) / self.step))
        # The line is fitted: what it misses at the borders by less than a pixel belongs to the last one.
        return min(max(pixel, 0), self.pixels - 1) if -1 <= pixel <= self.pixels else None


@dataclass(frozen=True)
class View:
    """An image as a model sees it.

    Args:
        batch: What the model takes.
        shown: The same to look at, RGB (H, W, 3), before the preprocessor pads it.
        y, x: Where its rows and columns come from.
    """

    batch: Batch
    shown: NDArray[np.uint8]
    y: Axis
    x: Axis

    @property
    def size(self) -> tuple[int, int]:
        return self.shown.shape[0], self.shown.shape[1]

    def find(self, x: float, y: float) -> tuple[int, int] | None:
        """Row and column that show a point of the image, both of its sides counted from 0 to 1."""
        row, column = self.y.find(y), self.x.find(x)
        return None if row is None or column is None else (row, column)


def make_view(prepare: Callable[[NDArray[np.uint8]], Mapping[str, Any]], image: NDArray[np.uint8]) -> View:
    """The view of an image, BGR (H, W, 3); `prepare` is the test pipeline of a model's config."""
    packed = prepare(image)
    # OpenMMLab's pipelines end in BGR.
    shown = packed['inputs'].flip(0).permute(1, 2, 0).numpy().astype(np.uint8)
    ramp = prepare(make_ramp(*image.shape[:2]))['inputs'].numpy()
    return View(pseudo_collate([packed]), np.ascontiguousarray(shown), fit_axis(ramp, 1), fit_axis(ramp, 0))


def make_ramp(height: int, width: int) -> NDArray[np.uint8]:
    """An image (H, W, 3) that tells its columns, its rows and, by its last channel, that it is there.

    Resizing, cropping and padding move it as they move any image, and need not be understood.
    """
    ramp = np.full((height, width, 3), 255, np.uint8)
    for channel, side in ((0, width), (1, height)):
        line = np.round((np.arange(side) + 0.5) / side * 255).astype(np.uint8)
        ramp[..., channel] = line[None, :] if channel == 0 else line[:, None]
    return ramp


def fit_axis(ramp: NDArray[np.generic], channel: int) -> Axis:
    """The line through what became of a ramp (3, H, W): of its columns for channel 0, of its rows for 1."""
    pixels = ramp.shape[2 - channel]
    present = ramp[2] == 255
    lines = np.where(present, ramp[channel], np.nan).astype(float)
    rows = present.any(axis=channel)
    values = np.nanmean(lines[:, rows] if channel == 0 else lines[rows, :], axis=channel)
    places = np.flatnonzero(rows)
    inside = (values > _BENT) & (values < 255 - _BENT)
    if np.count_nonzero(inside) < 2:
        raise UserError(f'the test pipeline leaves {pixels} pixels of a side: too few to click on')
    step, start = np.polyfit(places[inside] + 0.5, values[inside] / 255, 1)
    return Axis(float(start), float(step), pixels)
