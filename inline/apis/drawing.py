"""Drawings of predictions: the image with scores, boxes and masks, or a label map.

The toolboxes' visualizers are not used: their text is unreadable on small images, and mmseg's searches every
pixel of every class for a place to write its name, which takes minutes on a large image.
"""

import numpy as np
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray
from PIL import Image as PILImage
from PIL import ImageDraw

from inline.apis.loading import Classes
from inline.utils.drawing import (
    BLACK,
    WHITE,
    Image,
    default_text_size,
    draw_instances,
    draw_label_map,
    enlarge,
    load_font,
)

DEFAULT_SCORE_THR = 0.3
# Default number of classes that are listed for a classifier.
TOP_K = 5
# Small images are enlarged until the longer side has this many pixels, at most by the factor below.
_MIN_SIDE = 480
_MAX_ZOOM = 12
_MAX_LEGEND_ENTRIES = 12
_BAR_COLOR = (215, 215, 215)


def draw(
    image: Image, sample: BaseDataElement, classes: Classes, score_thr: float, top_k: int = TOP_K
) -> Image:
    """Draw the predictions of a data sample.

    Args:
        image: BGR (H, W, 3).
        sample: A data sample of one of the toolboxes.
        classes: Class names and colours.
        score_thr: Boxes with a lower score are not drawn.
        top_k: Number of classes that are listed for a classifier.

    Returns:
        The enlarged image, BGR. Below the image are the classes with the highest scores, or the legend of the
        label map.
    """
    rgb: Image = np.ascontiguousarray(image[..., ::-1])
    zoom = min(max(1, -(-_MIN_SIDE // max(image.shape[:2]))), _MAX_ZOOM)
    if 'pred_score' in sample:
        large = enlarge(rgb, zoom)
        drawn = np.vstack([large, _score_bars(large, np.asarray(sample.pred_score.cpu()), classes, top_k)])
    elif 'pred_instances' in sample:
        found = sample.pred_instances.cpu()
        found = found[found.scores >= score_thr]
        drawn = draw_instances(
            rgb,
            found.bboxes,
            found.labels.tolist(),
            classes.names,
            classes.palette,
            scores=found.scores.tolist(),
            masks=found.masks if 'masks' in found else None,
            zoom=zoom,
        )
    else:
        labels = np.asarray(sample.pred_sem_seg.data.cpu())[0]
        drawn = draw_label_map(rgb, labels, classes.palette, zoom)
        drawn = np.vstack([drawn, _legend(drawn, labels, classes)])
    return np.ascontiguousarray(drawn[..., ::-1])


def _score_bars(canvas: Image, scores: NDArray[np.floating], classes: Classes, top_k: int) -> Image:
    """Draw a bar for each of the most likely classes, on a panel as wide as the canvas."""
    order = np.argsort(-scores, kind='stable')[:top_k]
    width, size = canvas.shape[1], default_text_size(canvas)
    line, font = round(1.6 * size), load_font(size)
    panel = PILImage.new('RGB', (width, len(order) * line + size // 2), WHITE)
    pen = ImageDraw.Draw(panel)
    for i, label in enumerate(order):
        top, percent = i * line + size // 4, f'{scores[label]:.1%}'
        pen.rectangle((0, top, int(scores[label] * width), top + line - size // 4), _BAR_COLOR)
        pen.text((size // 2, top), classes.names[label], BLACK, font)
        pen.text((width - pen.textlength(percent, font) - size // 2, top), percent, BLACK, font)
    return np.asarray(panel)


def _legend(canvas: Image, labels: NDArray[np.integer], classes: Classes) -> Image:
    """Draw the classes of a label map with their shares of the pixels, on a panel as wide as the canvas."""
    shares = np.bincount(labels.reshape(-1), minlength=len(classes.names)) / labels.size
    order = [i for i in np.argsort(-shares, kind='stable')[:_MAX_LEGEND_ENTRIES] if shares[i] > 0]
    entries = [f'{classes.names[label]}: {shares[label]:.1%}' for label in order]
    size = default_text_size(canvas)
    line, font = round(1.6 * size), load_font(size)
    cell = 3 * size + max(int(font.getlength(entry)) for entry in entries)
    columns = max(1, canvas.shape[1] // cell)
    rows = -(-len(entries) // columns)
    panel = PILImage.new('RGB', (canvas.shape[1], rows * line + size // 2), WHITE)
    pen = ImageDraw.Draw(panel)
    for i, (label, entry) in enumerate(zip(order, entries, strict=True)):
        x, y = i % columns * cell + size // 2, i // columns * line + size // 4
        pen.rectangle((x, y + size // 8, x + size, y + size // 8 + size), classes.palette[label], BLACK)
        pen.text((x + 3 * size // 2, y), entry, BLACK, font)
    return np.asarray(panel)
