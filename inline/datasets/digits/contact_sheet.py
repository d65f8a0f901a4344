"""An overview image of the digit scenes, for the documentation."""

from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image as PILImage
from PIL import ImageDraw

from inline.datasets.digits.rendering import (
    FIRST_DIGIT_LABEL,
    DigitScenesOptions,
    Scene,
    render_classification,
    render_scene,
)
from inline.datasets.digits.sources import NUM_CLASSES, load_sources
from inline.utils.drawing import Image, class_palette, draw_instances, load_font

_WIDTH, _GAP, _TEXT_SIZE = 1200, 4, 16
_TEXT_COLOR, _BACKGROUND_COLOR = (50, 60, 70), (45, 45, 45)
_SAMPLE_COLUMNS, _SAMPLE_ROWS = 20, 3
_SCENE_COLUMNS, _SCENE_ROWS = 6, 2
_NAMES = [str(label) for label in range(NUM_CLASSES)]
_PALETTE = class_palette(NUM_CLASSES)


def contact_sheet(options: DigitScenesOptions) -> Image:
    """Draw validation samples as an RGB image, 1,200 pixels wide."""
    sources = load_sources(options.seed)
    count = _SAMPLE_COLUMNS * _SAMPLE_ROWS
    samples = [render_classification(sources, options, 'val', index).image for index in range(count)]
    # The scenes with the most digits, because the sheet has few tiles.
    scenes = [render_scene(sources, options, 'val', index) for index in range(4 * _SCENE_COLUMNS)]
    scenes.sort(key=lambda scene: -len(scene.instances))
    rows = [
        _caption('Classification: one digit per image'),
        _grid([sample[..., ::-1] for sample in samples], _SAMPLE_COLUMNS),
        _caption('Detection: boxes and masks of the visible ink. Segmentation: label maps'),
    ]
    for row in range(_SCENE_ROWS):
        in_row = scenes[row * _SCENE_COLUMNS : (row + 1) * _SCENE_COLUMNS]
        rows.append(_grid([_draw_boxes_and_masks(scene) for scene in in_row], _SCENE_COLUMNS))
        rows.append(_grid([_color_labels(scene) for scene in in_row], _SCENE_COLUMNS))
    return np.vstack(rows)


def _draw_boxes_and_masks(scene: Scene) -> Image:
    masks = [instance.mask for instance in scene.instances]
    rectangles = [cv2.boundingRect(mask.astype(np.uint8)) for mask in masks]
    boxes = [(x, y, x + width, y + height) for x, y, width, height in rectangles]
    labels = [instance.label for instance in scene.instances]
    image = np.ascontiguousarray(scene.image[..., ::-1])
    return draw_instances(image, boxes, labels, _NAMES, _PALETTE, masks=masks, zoom=3, text_size=18)


def _color_labels(scene: Scene) -> Image:
    palette = np.array([_BACKGROUND_COLOR] * FIRST_DIGIT_LABEL + list(_PALETTE), dtype=np.uint8)
    return np.asarray(palette[scene.label_map])


def _grid(images: Sequence[Image], columns: int) -> Image:
    side = _WIDTH // columns - _GAP
    tiles = []
    for image in images:
        # Label maps are enlarged and must keep their colors; drawings are reduced.
        method = cv2.INTER_AREA if image.shape[0] > side else cv2.INTER_NEAREST
        tile = cv2.resize(np.ascontiguousarray(image), (side, side), interpolation=method)
        tiles.append(np.pad(tile, ((0, _GAP), (0, _GAP), (0, 0)), constant_values=255))
    return np.vstack([np.hstack(tiles[start : start + columns]) for start in range(0, len(tiles), columns)])


def _caption(text: str) -> Image:
    picture = PILImage.new('RGB', (_WIDTH, 30), 'white')
    ImageDraw.Draw(picture).text((2, 5), text, _TEXT_COLOR, load_font(_TEXT_SIZE))
    return np.asarray(picture)
