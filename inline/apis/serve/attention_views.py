"""Attention of every layer at a point of an image, and the position of that point in the model's input."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from numpy.typing import NDArray

from inline.analysis.layers import Layer, capture_inputs
from inline.analysis.maps import LayerMaps, Pixel, TokenResidual, find_token, layer_maps, token_residual
from inline.analysis.models import AnalysisModel, Batch
from inline.apis.inputs import to_rgb_image
from inline.models.mixers.base import AttentionInputs
from inline.utils.drawing import Image
from inline.utils.errors import UserError

# Interpolation may change this many values at the ends of the coordinate gradient.
_MARGIN = 8


@dataclass(frozen=True)
class AxisMapping:
    """Linear mapping from pixels of the model's input to positions in the image, along one side.

    The centre of pixel i is at the relative position start + step · (i + ½), from 0 to 1.
    """

    start: float
    step: float
    pixels: int

    def find_pixel(self, position: float) -> int | None:
        """Return the pixel at a relative position; None if it is cropped off."""
        pixel = int(np.floor((position - self.start) / self.step))
        # The mapping is fitted: allow an error of one pixel at the borders.
        return min(max(pixel, 0), self.pixels - 1) if -1 <= pixel <= self.pixels else None


@dataclass(frozen=True)
class ModelInput:
    """An image after the test pipeline of a model.

    Args:
        batch: The batch for the model.
        image: The same image to display, RGB (H, W, 3), before the data preprocessor pads it.
        rows, columns: Mappings to positions in the original image.
    """

    batch: Batch
    image: Image
    rows: AxisMapping
    columns: AxisMapping

    @property
    def size(self) -> tuple[int, int]:
        return self.image.shape[0], self.image.shape[1]

    def find_pixel(self, x: float, y: float) -> Pixel | None:
        """Return row and column of a point of the original image, given as relative positions."""
        row, column = self.rows.find_pixel(y), self.columns.find_pixel(x)
        return None if row is None or column is None else (row, column)


def prepare_input(pipeline: Callable[[Image], Mapping[str, Any]], image: Image) -> ModelInput:
    """Apply a test pipeline to an image, BGR (H, W, 3).

    The pipeline is also applied to an image of coordinates, to measure how it resizes, crops and pads.
    """
    packed = pipeline(image)
    coordinates = pipeline(coordinate_image(*image.shape[:2]))['inputs'].numpy()
    rows, columns = fit_axis(coordinates, 1), fit_axis(coordinates, 0)
    return ModelInput(pseudo_collate([packed]), to_rgb_image(packed['inputs']), rows, columns)


def coordinate_image(height: int, width: int) -> Image:
    """Return an image (H, W, 3) whose channels are x, y and, to recognise padding, the constant 255."""
    image = np.full((height, width, 3), 255, np.uint8)
    x, y = ((np.arange(side) + 0.5) / side * 255 for side in (width, height))
    image[..., 0] = np.round(x)[None, :]
    image[..., 1] = np.round(y)[:, None]
    return image


def fit_axis(coordinates: NDArray[np.generic], channel: int) -> AxisMapping:
    """Fit the mapping of columns (channel 0) or rows (channel 1) to a transformed coordinate image.

    Args:
        coordinates: The coordinate image (3, H, W) after the test pipeline.
        channel: 0 for columns, 1 for rows.
    """
    pixels = coordinates.shape[2 - channel]
    present = coordinates[2] == 255
    values = np.where(present, coordinates[channel], np.nan).astype(float)
    covered = present.any(axis=channel)
    profile = np.nanmean(values[:, covered] if channel == 0 else values[covered, :], axis=channel)
    inside = (profile > _MARGIN) & (profile < 255 - _MARGIN)
    if np.count_nonzero(inside) < 2:
        raise UserError(f'the test pipeline resizes a side to {pixels} pixels: too few to click on')
    step, start = np.polyfit(np.flatnonzero(covered)[inside] + 0.5, profile[inside] / 255, 1)
    return AxisMapping(float(start), float(step), pixels)


@dataclass(frozen=True)
class AttentionView:
    """Attention of one layer at one query.

    Args:
        layer: The layer.
        attention: Type of its attention, as in configs.
        heads: Number of heads.
        hw: Height and width of the token map.
        token: Row and column of the query on the token map.
        maps: Attention map of the query; None if the layer does not have the chosen head.
        residual: Contribution of the local residual; None if there is none.
    """

    layer: Layer
    attention: str
    heads: int
    hw: tuple[int, int]
    token: tuple[int, int]
    maps: LayerMaps | None
    residual: TokenResidual | None


def compute_attention_views(
    model: AnalysisModel, model_input: ModelInput, query: Pixel, head: int | None = None
) -> list[AttentionView]:
    """Run the backbone and compute the attention of the token at a pixel (y, x) in every layer.

    Args:
        model: The model.
        model_input: The image.
        query: Row and column of the pixel in the model's input.
        head: Index of one head; None for the mean of all.
    """
    views: list[AttentionView] = []
    with torch.no_grad():
        # The preprocessor may pad the image, and the token map covers the padding.
        height, width = model.prepare(model_input.batch)['inputs'].shape[-2:]
        padded = (int(height), int(width))

        def add_view(layer: Layer, inputs: list[AttentionInputs]) -> None:
            heads, hw = sum(group.num_heads for group in inputs), inputs[0].windows.hw
            token = find_token(query, padded, hw)
            maps = residual = None
            if head is None or head < heads:
                maps = layer_maps(layer, inputs, [query], padded, head)
                residual = token_residual(layer, inputs, token, head)
            attention = type(layer.mixer).__name__.removesuffix('Mixer')
            views.append(AttentionView(layer, attention, heads, hw, token, maps, residual))

        with capture_inputs(model.layers, add_view):
            model.run_backbone(model_input.batch)
    return views
