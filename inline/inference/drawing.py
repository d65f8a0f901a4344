"""Pictures of predictions, small images enlarged first so that the text is readable.

The toolboxes' own visualizers draw text that is lost on small images, and mmseg's searches every pixel of
every class for a place to write its name, which takes minutes on a large one.
"""

from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray
from PIL import Image as PILImage
from PIL import ImageDraw, ImageFont

from inline.inference.inputs import Image
from inline.inference.loading import Classes, Colour

Box = tuple[float, float, float, float]

DEFAULT_SCORE_THR = 0.3
TOP = 5
# A picture's longer side is enlarged to at least this.
_READABLE = 480
_MOST_ZOOM = 12
_MASK_OPACITY = 0.4
_MAP_OPACITY = 0.55
_LEGEND_ENTRIES = 12
_WHITE, _BLACK, _GREY = (255, 255, 255), (0, 0, 0), (215, 215, 215)


def draw(image: Image, sample: BaseDataElement, classes: Classes, score_thr: float) -> Image:
    """The image (H, W, 3) in BGR with what the sample predicts, in BGR."""
    zoom = min(max(1, -(-_READABLE // max(image.shape[:2]))), _MOST_ZOOM)
    large = cv2.resize(image, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_CUBIC) if zoom > 1 else image
    canvas: Image = np.ascontiguousarray(large[..., ::-1])
    if 'pred_score' in sample:
        drawn = _draw_scores(canvas, np.asarray(sample.pred_score.cpu()), classes)
    elif 'pred_instances' in sample:
        drawn = _draw_instances(canvas, sample.pred_instances.cpu(), classes, score_thr, zoom)
    else:
        drawn = _draw_label_map(canvas, np.asarray(sample.pred_sem_seg.data.cpu())[0], classes, zoom)
    return np.ascontiguousarray(drawn[..., ::-1])


def _draw_scores(canvas: Image, scores: NDArray[np.floating], classes: Classes) -> Image:
    """The most likely classes below the image, each with a bar as long as its score."""
    order = np.argsort(-scores, kind='stable')[:TOP]
    size = _text_size(canvas)
    line = round(1.6 * size)
    panel = PILImage.new('RGB', (canvas.shape[1], len(order) * line + size // 2), _WHITE)
    pen, font = ImageDraw.Draw(panel), _font(size)
    widest = f'{1:.1%}'
    for i, label in enumerate(order):
        top = i * line + size // 4
        pen.rectangle((0, top, int(scores[label] * canvas.shape[1]), top + line - size // 4), _GREY)
        pen.text((size // 2, top), classes.names[label], _BLACK, font)
        figure = f'{scores[label]:.1%}'
        at = canvas.shape[1] - pen.textlength(widest, font) - size // 2
        pen.text(
            (at + pen.textlength(widest, font) - pen.textlength(figure, font), top), figure, _BLACK, font
        )
    return np.vstack([canvas, np.asarray(panel)])


def _draw_instances(canvas: Image, instances: Any, classes: Classes, score_thr: float, zoom: int) -> Image:
    """Masks, boxes and tags, the surest on top."""
    chosen = instances[instances.scores >= score_thr]
    chosen = chosen[chosen.scores.argsort()]
    boxes = np.asarray(chosen.bboxes) * zoom
    labels = np.asarray(chosen.labels)
    if 'masks' in chosen:
        for label, mask in zip(labels, np.asarray(chosen.masks), strict=True):
            _draw_mask(canvas, mask, classes.palette[label], zoom)
    picture = PILImage.fromarray(canvas)
    pen, size = ImageDraw.Draw(picture), _text_size(canvas)
    for label, (x1, y1, x2, y2) in zip(labels, boxes, strict=True):
        corners = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
        pen.rectangle(corners, outline=classes.palette[label], width=max(2, size // 8))
    # The surest has the first choice of a place for its tag.
    taken: list[Box] = []
    for label, box, score in list(zip(labels, boxes, np.asarray(chosen.scores), strict=True))[::-1]:
        text = f'{classes.names[label]} {score:.2f}'
        taken.append(_draw_tag(pen, tuple(box), text, classes.palette[label], size, taken))
    return np.asarray(picture)


def _draw_label_map(canvas: Image, labels: NDArray[np.integer], classes: Classes, zoom: int) -> Image:
    """The map over the image, and below them the classes with their shares of the pixels."""
    small = labels.astype(np.uint16)
    large = cv2.resize(small, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_NEAREST) if zoom > 1 else small
    colours = np.array(classes.palette, dtype=np.uint8)[large]
    # Grey below, or the colours would not be those of the legend.
    grey = np.repeat(cv2.cvtColor(canvas, cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2)
    mixed = cv2.addWeighted(grey, 1 - _MAP_OPACITY, colours, _MAP_OPACITY, 0)
    return np.vstack([mixed, _legend(canvas, labels, classes)])


def _legend(canvas: Image, labels: NDArray[np.integer], classes: Classes) -> Image:
    shares = np.bincount(labels.reshape(-1), minlength=len(classes.names)) / labels.size
    order = [label for label in np.argsort(-shares, kind='stable')[:_LEGEND_ENTRIES] if shares[label] > 0]
    size, font = _text_size(canvas), _font(_text_size(canvas))
    entries = [f'{classes.names[label]}: {shares[label]:.1%}' for label in order]
    cell = 2 * size + max(int(font.getlength(entry)) for entry in entries) + size
    columns = max(1, canvas.shape[1] // cell)
    line = round(1.6 * size)
    rows = -(-len(entries) // columns)
    panel = PILImage.new('RGB', (canvas.shape[1], rows * line + size // 2), _WHITE)
    pen = ImageDraw.Draw(panel)
    for i, (label, entry) in enumerate(zip(order, entries, strict=True)):
        x, y = i % columns * cell + size // 2, i // columns * line + size // 4
        pen.rectangle((x, y + size // 8, x + size, y + size // 8 + size), classes.palette[label], _BLACK)
        pen.text((x + 3 * size // 2, y), entry, _BLACK, font)
    return np.asarray(panel)


def _draw_mask(canvas: Image, mask: NDArray[np.bool_], colour: Colour, zoom: int) -> None:
    # Enlarged as a grey image, then cut at one half, the outline has no stairs.
    grey = mask.astype(np.uint8) * 255
    large = cv2.resize(grey, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_CUBIC) > 127
    canvas[large] = (canvas[large] * (1 - _MASK_OPACITY) + np.array(colour) * _MASK_OPACITY).astype(np.uint8)
    contours, _ = cv2.findContours(large.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(canvas, contours, -1, colour, 1, cv2.LINE_AA)


def _draw_tag(
    pen: ImageDraw.ImageDraw, box: Box, text: str, colour: Colour, size: int, taken: list[Box]
) -> Box:
    """Text on a patch of the class's colour at a corner of a box where no other is; the place it took."""
    font = _font(size)
    width, height = pen.textlength(text, font) + size // 2, round(1.3 * size)
    places = [
        _inside(pen, x, y, width, height)
        for x, y in (
            (box[0], box[1] - height),
            (box[2] - width, box[1] - height),
            (box[0], box[3]),
            (box[2] - width, box[3]),
            (box[0], box[1]),
        )
    ]
    place = next((place for place in places if not any(_overlap(place, other) for other in taken)), places[0])
    pen.rectangle(place, colour)
    red, green, blue = colour
    ink = _BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else _WHITE
    pen.text((place[0] + size // 4, place[1]), text, ink, font)
    return place


def _inside(pen: ImageDraw.ImageDraw, x: float, y: float, width: float, height: float) -> Box:
    """A patch moved so that it lies within the picture."""
    x = min(max(x, 0), max(pen.im.size[0] - width, 0))
    y = min(max(y, 0), max(pen.im.size[1] - height, 0))
    return x, y, x + width, y + height


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _text_size(canvas: Image) -> int:
    return max(15, max(canvas.shape[:2]) // 50)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    # matplotlib brings a font that has most alphabets; OpenCV's has ASCII alone.
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), 'fonts', 'ttf', 'DejaVuSans.ttf')), size)
