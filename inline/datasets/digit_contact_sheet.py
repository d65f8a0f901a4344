"""A picture that shows what the digit scenes look like, for the README."""

import colorsys
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from inline.datasets.digit_rendering import FIRST_DIGIT_LABEL, Scene, render_classification
from inline.datasets.digit_scenes import DigitScenesOptions, scene_of
from inline.datasets.digit_sources import NUM_CLASSES, load_sources

_CLASSIFICATION_COLUMNS, _CLASSIFICATION_ROWS, _CLASSIFICATION_TILE = 20, 3, 56
_SCENE_COLUMNS, _SCENE_ROWS, _SCENE_TILE = 6, 2, 196
_GAP = 4
_CAPTION_HEIGHT = 30
_TEXT_COLOUR = (70, 60, 50)

# One well separated BGR colour per class, shared by boxes, contours and label maps.
_CLASS_COLOURS = [
    tuple(round(255 * channel) for channel in reversed(colorsys.hsv_to_rgb(label / NUM_CLASSES, 0.75, 1.0)))
    for label in range(NUM_CLASSES)
]


def contact_sheet(options: DigitScenesOptions) -> NDArray[np.uint8]:
    """Draw validation samples as the options say: BGR, about 1,200 pixels wide."""
    sources = load_sources(options.seed)
    samples = [
        render_classification(
            sources, seed=options.seed, split='val', index=index, size=options.classification_size
        ).image
        for index in range(_CLASSIFICATION_COLUMNS * _CLASSIFICATION_ROWS)
    ]
    # The scenes with the most digits among many: a sheet is small, so each tile has to show something.
    scenes = [scene_of(sources, options, 'val', index) for index in range(4 * _SCENE_COLUMNS)]
    scenes.sort(key=lambda scene: -len(scene.instances))
    scenes = scenes[: _SCENE_COLUMNS * _SCENE_ROWS]
    blocks = [_caption('Classification: one digit per image')]
    blocks.append(_grid(samples, _CLASSIFICATION_COLUMNS, _CLASSIFICATION_TILE))
    blocks.append(
        _caption('Detection: boxes and masks of what is visible, and the label maps of segmentation')
    )
    for row in range(_SCENE_ROWS):
        in_row = scenes[row * _SCENE_COLUMNS : (row + 1) * _SCENE_COLUMNS]
        blocks.append(_grid([_with_instances(scene) for scene in in_row], _SCENE_COLUMNS, _SCENE_TILE))
        blocks.append(_grid([_coloured_labels(scene) for scene in in_row], _SCENE_COLUMNS, _SCENE_TILE))
    width = max(block.shape[1] for block in blocks)
    return np.vstack([_pad_to_width(block, width) for block in blocks])


def _with_instances(scene: Scene) -> NDArray[np.uint8]:
    """The scene at the tile's size with each digit's mask contour, box and class."""
    tile = _enlarge(scene.image, _SCENE_TILE)
    for instance in scene.instances:
        colour = _CLASS_COLOURS[instance.label]
        mask = _enlarge(instance.mask.astype(np.uint8), _SCENE_TILE)
        contours, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(tile, contours, -1, colour, 1, cv2.LINE_AA)
        x, y, width, height = cv2.boundingRect(mask)
        cv2.rectangle(tile, (x, y), (x + width - 1, y + height - 1), colour, 1)
        left, top = min(x, _SCENE_TILE - 12), max(y - 13, 0)
        cv2.rectangle(tile, (left, top), (left + 11, top + 13), colour, cv2.FILLED)
        _write(tile, str(instance.label), (left + 2, top + 11), 0.4, (0, 0, 0))
    return tile


def _coloured_labels(scene: Scene) -> NDArray[np.uint8]:
    palette = np.full((FIRST_DIGIT_LABEL + NUM_CLASSES, 3), 45, dtype=np.uint8)
    palette[FIRST_DIGIT_LABEL:] = _CLASS_COLOURS
    coloured: NDArray[np.uint8] = palette[_enlarge(scene.label_map, _SCENE_TILE)]
    return coloured


def _enlarge(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    # Label maps and masks (one channel) must keep their values; photographs look better smooth.
    interpolation = cv2.INTER_CUBIC if image.ndim == 3 else cv2.INTER_NEAREST
    enlarged: NDArray[np.uint8] = cv2.resize(image, (side, side), interpolation=interpolation)
    return enlarged


def _grid(images: Sequence[NDArray[np.uint8]], columns: int, side: int) -> NDArray[np.uint8]:
    tiles = [
        np.pad(_enlarge(image, side), ((0, _GAP), (0, _GAP), (0, 0)), constant_values=255) for image in images
    ]
    return np.vstack([np.hstack(tiles[start : start + columns]) for start in range(0, len(tiles), columns)])


def _caption(text: str) -> NDArray[np.uint8]:
    block = np.full((_CAPTION_HEIGHT, _SCENE_COLUMNS * (_SCENE_TILE + _GAP), 3), 255, dtype=np.uint8)
    _write(block, text, (2, 21), 0.55, _TEXT_COLOUR)
    return block


def _write(
    image: NDArray[np.uint8], text: str, place: tuple[int, int], scale: float, colour: tuple[int, int, int]
) -> None:
    cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, scale, colour, 1, cv2.LINE_AA)


def _pad_to_width(block: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    return np.pad(block, ((0, 0), (0, width - block.shape[1]), (0, 0)), constant_values=255)
