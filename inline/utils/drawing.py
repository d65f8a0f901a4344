"""Drawing of boxes, masks and label maps, and the colours of classes and charts.

All images are RGB arrays (H, W, 3) of uint8. The functions enlarge an image by an integer factor before they
draw on it, to keep text readable on small images.
"""

import colorsys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image as PILImage
from PIL import ImageDraw, ImageFont

Image = NDArray[np.uint8]
Box = tuple[float, float, float, float]
Color = tuple[int, int, int]

# RGB, ordered so that the first n are easy to tell apart: the CIEDE2000 distance of any two is at least 16.
# None is close to grey, because label maps are drawn on grey images.
BASE_PALETTE: tuple[Color, ...] = (
    (230, 25, 75),
    (60, 180, 75),
    (255, 225, 25),
    (67, 99, 216),
    (245, 130, 49),
    (145, 30, 180),
    (66, 212, 244),
    (240, 50, 230),
    (191, 239, 69),
    (0, 128, 128),
    (75, 60, 0),
    (225, 210, 255),
    (0, 105, 15),
    (150, 135, 0),
    (105, 15, 45),
    (0, 255, 210),
    (255, 165, 165),
    (105, 165, 255),
    (150, 105, 135),
    (150, 60, 0),
)
# Saturation and value of further colours.
_LEVELS = ((0.85, 0.95), (0.6, 1.0), (0.95, 0.7))

# Lines and bars of charts.
CHART_COLORS = ('#2f7de1', '#e2711d', '#2a9d5c', '#8e44ad', '#c0392b', '#17a2a2', '#7f6000', '#d6519b')
WHITE: Color = (255, 255, 255)
BLACK: Color = (0, 0, 0)
_MASK_OPACITY = 0.4
_MAP_OPACITY = 0.6


def class_palette(num_classes: int) -> tuple[Color, ...]:
    """Return one RGB colour per class: `BASE_PALETTE`, then hues that step by the golden ratio."""
    colors = list(BASE_PALETTE[:num_classes])
    for i in range(len(BASE_PALETTE), num_classes):
        rgb = colorsys.hsv_to_rgb(i * 0.618034 % 1, *_LEVELS[i % len(_LEVELS)])
        red, green, blue = (round(255 * channel) for channel in rgb)
        colors.append((red, green, blue))
    return tuple(colors)


def enlarge(image: Image, zoom: int) -> Image:
    """Enlarge an image by an integer factor; 1 returns a copy."""
    return np.array(cv2.resize(image, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_CUBIC))


def draw_instances(
    image: Image,
    boxes: ArrayLike,
    labels: Sequence[int],
    names: Sequence[str],
    palette: Sequence[Color],
    *,
    scores: Sequence[float] | None = None,
    masks: Sequence[Any] | None = None,
    zoom: int = 1,
    text_size: int | None = None,
) -> Image:
    """Draw masks, boxes and tags with the class names on the enlarged image.

    Args:
        image: RGB (H, W, 3).
        boxes: (N, 4) as x1, y1, x2, y2 in pixels of the image.
        labels: N class indices.
        names: Class names by label.
        palette: RGB colours by label.
        scores: N scores, which the tags show. Instances with higher scores are drawn on top.
        masks: N masks (H, W).
        zoom: Factor by which the image is enlarged.
        text_size: Height of the text in pixels; by default it depends on the image size.
    """
    canvas = enlarge(image, zoom)
    corners = np.asarray(boxes, dtype=float).reshape(-1, 4) * zoom
    order = range(len(labels)) if scores is None else np.argsort(scores, kind='stable')
    if masks is not None:
        for i in order:
            _draw_mask(canvas, np.asarray(masks[i]), palette[labels[i]], zoom)
    picture = PILImage.fromarray(canvas)
    pen, size = ImageDraw.Draw(picture), text_size or default_text_size(canvas)
    for i in order:
        x1, y1, x2, y2 = corners[i]
        ends = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
        pen.rectangle(ends, outline=palette[labels[i]], width=max(2, size // 8))
    # Place the tags of the highest scores first: they get the best position.
    occupied: list[Box] = []
    for i in reversed(order):
        text = names[labels[i]] if scores is None else f'{names[labels[i]]} {scores[i]:.2f}'
        occupied.append(draw_tag(pen, tuple(corners[i]), text, palette[labels[i]], size, occupied))
    return np.asarray(picture)


def draw_label_map(
    image: Image, labels: NDArray[np.integer], palette: Sequence[Color], zoom: int = 1
) -> Image:
    """Blend the colours of a label map (H, W) with the enlarged image.

    The image is converted to grey first. Otherwise its colours would mix with those of the classes.
    """
    large = cv2.resize(labels.astype(np.uint16), None, fx=zoom, fy=zoom, interpolation=cv2.INTER_NEAREST)
    colors = np.array(palette, dtype=np.uint8)[large]
    gray = np.repeat(cv2.cvtColor(enlarge(image, zoom), cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2)
    return np.asarray(cv2.addWeighted(gray, 1 - _MAP_OPACITY, colors, _MAP_OPACITY, 0))


def draw_tag(
    pen: ImageDraw.ImageDraw, box: Box, text: str, color: Color, size: int, occupied: Sequence[Box] = ()
) -> Box:
    """Draw text on a coloured patch at a corner of a box, and return the area of the patch.

    Takes the first corner that is not in `occupied`, or the upper left one if there is none.
    """
    font = load_font(size)
    width, height = pen.textlength(text, font) + size // 2, round(1.3 * size)
    x1, y1, x2, y2 = box
    positions = ((x1, y1 - height), (x2 - width, y1 - height), (x1, y2), (x2 - width, y2), (x1, y1))
    areas = [_clip_area(pen, x, y, width, height) for x, y in positions]
    free = (area for area in areas if not any(_overlap(area, other) for other in occupied))
    area = next(free, areas[0])
    pen.rectangle(area, color)
    pen.text((area[0] + size // 4, area[1]), text, text_color(color), font)
    return area


def text_color(background: Color) -> Color:
    """Return black or white, whichever is readable on the background."""
    red, green, blue = background
    return BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else WHITE


def default_text_size(canvas: Image) -> int:
    return max(15, max(canvas.shape[:2]) // 50)


@cache
def load_font(size: int) -> ImageFont.FreeTypeFont:
    # DejaVu Sans, which matplotlib includes, covers most alphabets; OpenCV's fonts are ASCII only.
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), 'fonts', 'ttf', 'DejaVuSans.ttf')), size)


def _draw_mask(canvas: Image, mask: NDArray[np.bool_], color: Color, zoom: int) -> None:
    # Cubic interpolation and a threshold at one half give a smooth outline.
    gray = mask.astype(np.uint8) * 255
    large = cv2.resize(gray, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_CUBIC) > 127
    canvas[large] = (canvas[large] * (1 - _MASK_OPACITY) + np.array(color) * _MASK_OPACITY).astype(np.uint8)
    contours, _ = cv2.findContours(large.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(canvas, contours, -1, color, 1, cv2.LINE_AA)


def _clip_area(pen: ImageDraw.ImageDraw, x: float, y: float, width: float, height: float) -> Box:
    """Move an area inside the picture."""
    x = min(max(x, 0), max(pen.im.size[0] - width, 0))
    y = min(max(y, 0), max(pen.im.size[1] - height, 0))
    return x, y, x + width, y + height


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
