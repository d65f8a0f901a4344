"""HTML of the page. Pictures are embedded: the server exposes no files."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import cv2
import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from inline.analysis.maps import LayerMaps
from inline.apis.drawing import DEFAULT_SCORE_THR, TOP_K
from inline.apis.serve.attention_views import AttentionView, ModelInput
from inline.utils.drawing import Image

# Layers per line of the grid.
MAX_COLUMNS = 6
# Longer side of the pictures in pixels: of a layer, and of the uploaded image and the prediction.
LAYER_SIDE = 240
IMAGE_SIDE = 640
# Opacity of attention maps.
OPACITY = 0.72
COLORMAP = mpl.colormaps['RdBu_r']


@dataclass(frozen=True)
class PredictionSummary:
    """A prediction as the page shows it.

    Args:
        text: One sentence.
        scores: Class names with scores from 0 to 1, the highest first.
        picture: Boxes, masks or the label map on the image, RGB (H, W, 3); None for classification.
    """

    text: str
    scores: list[tuple[str, float]]
    picture: Image | None = None


def summarize(
    sample: Any,
    classes: Sequence[str],
    draw: Callable[[], Image],
    score_thr: float = DEFAULT_SCORE_THR,
) -> PredictionSummary:
    """Summarize a data sample of one of the toolboxes; `draw` returns its picture, RGB (H, W, 3)."""
    if 'pred_score' in sample:
        scores = sample.pred_score.cpu().numpy()
        best = [(classes[label], float(scores[label])) for label in np.argsort(-scores)[:TOP_K]]
        return PredictionSummary(f'Class {best[0][0]}, score {best[0][1]:.1%}', best)
    if 'pred_sem_seg' in sample:
        # The picture has a legend with names and shares.
        count = len(np.unique(sample.pred_sem_seg.data.cpu().numpy()))
        return PredictionSummary(f'{count} {"class" if count == 1 else "classes"}', [], draw())
    found = sample.pred_instances
    found = found[found.scores >= score_thr]
    pairs = zip(found.labels.tolist(), found.scores.tolist(), strict=True)
    ordered = sorted(((classes[label], score) for label, score in pairs), key=lambda pair: -pair[1])
    objects = 'object' if len(ordered) == 1 else 'objects'
    text = f'{len(ordered)} {objects} with a score of at least {score_thr:g}'
    if len(ordered) > TOP_K:
        text += f'; the {TOP_K} highest scores:'
    return PredictionSummary(text, ordered[:TOP_K], draw())


class LayerRow(NamedTuple):
    """The layers of one model: its label, the attention views, and the image they belong to."""

    label: str
    views: Sequence[AttentionView]
    model_input: ModelInput


def encode_png(picture: Image) -> str:
    """Return an RGB picture as a data URI."""
    content = cv2.imencode('.png', cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))[1].tobytes()
    return f'data:image/png;base64,{base64.b64encode(content).decode()}'


def resize_to(picture: Image, side: int) -> Image:
    """Resize the longer side of a picture to `side`."""
    height, width = picture.shape[:2]
    scale = side / max(height, width)
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    method = cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA
    return np.asarray(cv2.resize(picture, size, interpolation=method))


def render_message(text: str, is_error: bool = False) -> str:
    role, css_class = ('alert', 'wrong') if is_error else ('status', 'fine')
    return f'<p class="il-message {css_class}" role="{role}">{escape(text)}</p>'


def render_image(picture: str, point: tuple[float, float] | None) -> str:
    """Render the clickable image, with a marker at the point (x, y) in relative positions."""
    marker = ''
    if point is not None:
        marker = f'<span class="il-cross" style="left:{point[0]:.3%};top:{point[1]:.3%}"></span>'
    return (
        '<figure class="il-point"><figcaption>Your image: click a point</figcaption>'
        f'<div class="il-frame"><img class="il-click" src="{picture}" alt="your image" draggable="false">'
        f'{marker}</div></figure>'
    )


def render_examples(images: Sequence[Image]) -> str:
    """Render RGB images as buttons; the attribute ``data-index`` is their position."""
    buttons = ''.join(
        f'<button type="button" class="il-example" data-index="{i}" aria-label="example {i + 1}">'
        f'<img src="{encode_png(image)}" alt="" draggable="false"></button>'
        for i, image in enumerate(images)
    )
    return f'<div class="il-examples"><span>Or try an example:</span>{buttons}</div>'


def render_predictions(predictions: Sequence[tuple[str, PredictionSummary]]) -> str:
    sections = ''.join(_render_prediction(label, summary) for label, summary in predictions)
    return f'<div class="il-predictions">{sections}</div>'


def _render_prediction(label: str, summary: PredictionSummary) -> str:
    picture = ''
    if summary.picture is not None:
        source = encode_png(resize_to(summary.picture, IMAGE_SIDE))
        picture = f'<img src="{source}" alt="prediction of {escape(label)}">'
    bars = ''.join(
        f'<tr><th>{escape(name)}</th><td><span class="il-bar" style="width:{score:.1%}"></span></td>'
        f'<td class="il-number">{score:.1%}</td></tr>'
        for name, score in summary.scores
    )
    return (
        f'<section class="il-prediction"><h3>{escape(label)}</h3>{picture}'
        f'<p>{escape(summary.text)}</p><table class="il-scores">{bars}</table></section>'
    )


def render_layers(rows: Sequence[LayerRow]) -> str:
    """Render a grid with a column per layer, and rows for the attention and the residual of each model."""
    count = max(len(row.views) for row in rows)
    grids = [
        _render_grid([row._replace(views=row.views[first : first + MAX_COLUMNS]) for row in rows])
        for first in range(0, count, MAX_COLUMNS)
    ]
    return f'<div class="il-layers">{"".join(grids)}</div>'


def _render_grid(rows: Sequence[LayerRow]) -> str:
    columns = max(len(row.views) for row in rows)
    lines = []
    for row in rows:
        if not row.views:
            continue
        cells = [_render_attention(view, row.model_input) for view in row.views]
        lines.append((row.label, 'attention', cells))
        if any(view.residual is not None for view in row.views):
            lines.append((row.label, 'residual', [_render_residual(view) for view in row.views]))
    html = ''
    for label, content, cells in lines:
        html += f'<div class="il-name"><b>{escape(label)}</b><br>{content}</div>'
        cells += [''] * (columns - len(cells))
        html += ''.join(f'<div class="il-cell {content}">{cell}</div>' for cell in cells)
    return f'<div class="il-grid" style="--columns:{columns}">{html}</div>'


def _render_attention(view: AttentionView, model_input: ModelInput) -> str:
    title = f'{view.layer.name} · {view.attention}'
    caption = f'<figcaption>{escape(title)}<br><small>{view.hw[0]}×{view.hw[1]} tokens</small></figcaption>'
    if view.maps is None:
        return f'<figure>{caption}<p class="il-none">has {view.heads} heads</p></figure>'
    weights = relative_weights(view.maps)
    source = encode_png(draw_weights(model_input.image, weights, view.maps.key_stride))
    left, top, width, height = token_frame(view, model_input)
    frame = (
        f'<span class="il-token" style="left:{left:.3%};top:{top:.3%};width:{width:.3%};'
        f'height:{height:.3%}"></span>'
    )
    limit = _max_abs(weights - 1)
    legend = f'<span>{1 - limit:.3g}</span><span>1</span><span>{1 + limit:.3g}</span>'
    return (
        f'<figure>{caption}<div class="il-frame"><img src="{source}" alt="attention in {escape(title)}">'
        f'{frame}</div><div class="il-legend"><i></i>{legend}</div></figure>'
    )


def _render_residual(view: AttentionView) -> str:
    if view.maps is None:
        return ''
    if view.residual is None:
        return '<figure><p class="il-none">no residual</p></figure>'
    added = view.residual.neighbors.numpy()
    limit = _max_abs(added)
    squares = ''
    for value in added.flatten():
        if np.isnan(value):
            squares += '<span class="il-beyond"></span>'
            continue
        red, green, blue, _ = COLORMAP(0.5 + 0.5 * value / limit, bytes=True)
        color = 'white' if value > 0.6 * limit else 'black'
        # Two significant digits, even if the second is 0.
        text = f'{value:#.2g}'.rstrip('.')
        squares += f'<span style="background:rgb({red},{green},{blue});color:{color}">{text}</span>'
    norms = f'residual {view.residual.residual:.3g}, attention {view.residual.attention:.3g}'
    legend = f'<i></i><span>0</span><span></span><span>{limit:.3g}</span>'
    return (
        f'<figure><figcaption>{norms}</figcaption><div class="il-kernel">{squares}</div>'
        f'<div class="il-legend il-up">{legend}</div></figure>'
    )


def relative_weights(maps: LayerMaps) -> NDArray[np.float64]:
    """Return the attention weights (h, w) times the number of visible keys: uniform attention gives 1."""
    weights: NDArray[np.float64] = maps.weights[0].numpy()
    return weights * np.count_nonzero(~np.isnan(weights))


def draw_weights(image: Image, weights: NDArray[np.float64], stride: int) -> Image:
    """Blend relative weights with the grey image: red above 1, blue below 1. NaN (not visible) stays grey.

    Args:
        image: RGB (H, W, 3).
        weights: Relative weights (h, w).
        stride: Pixels of the image per weight. Pixels beyond the last weight belong to it.
    """
    height, width = image.shape[:2]
    large = resize_to(image, LAYER_SIDE)
    rows = _weight_index(large.shape[0], height / large.shape[0] / stride, weights.shape[0])
    columns = _weight_index(large.shape[1], width / large.shape[1] / stride, weights.shape[1])
    values = weights[rows[:, None], columns[None, :]]
    grey = np.repeat(large.mean(axis=2, keepdims=True), 3, axis=2)
    visible = ~np.isnan(values)
    colors = 255 * COLORMAP(0.5 + 0.5 * (np.where(visible, values, 1) - 1) / _max_abs(weights - 1))[..., :3]
    mixed = np.where(visible[..., None], OPACITY * colors + (1 - OPACITY) * grey, 0.5 * grey + 90)
    return mixed.round().astype(np.uint8)


def _weight_index(pixels: int, step: float, count: int) -> NDArray[np.intp]:
    """Return the index of the weight for each pixel along one side."""
    return np.minimum(((np.arange(pixels) + 0.5) * step).astype(np.intp), count - 1)


def token_frame(view: AttentionView, model_input: ModelInput) -> tuple[float, float, float, float]:
    """Return left, top, width and height of the query token, relative to the sides of the image."""
    assert view.maps is not None
    (height, width), stride = model_input.size, view.maps.stride
    y, x = view.token
    bottom = height if y == view.hw[0] - 1 else min((y + 1) * stride, height)
    right = width if x == view.hw[1] - 1 else min((x + 1) * stride, width)
    left, top = x * stride, y * stride
    return left / width, top / height, (right - left) / width, (bottom - top) / height


def _max_abs(values: NDArray[np.float64]) -> float:
    return max(float(np.nanmax(np.abs(values))), 1e-6)
