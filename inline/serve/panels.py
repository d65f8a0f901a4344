"""The pieces of the page as HTML. Pictures stand inside it, so that no file of the server is named."""

import base64
from collections.abc import Sequence
from html import escape
from itertools import zip_longest
from typing import NamedTuple

import cv2
import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from inline.analysis.maps import LayerMaps
from inline.serve.looks import LayerLook
from inline.serve.predictions import Statement
from inline.serve.views import View

Picture = NDArray[np.uint8]

# Layers beside each other; more begin a new line.
MAX_COLUMNS = 6
# Sides of pictures in pixels: of a layer, and of the images that are looked at or clicked on.
PANEL_SIDE = 240
IMAGE_SIDE = 640
# How much of the colours covers the image below them.
OPACITY = 0.72
COLOURS = mpl.colormaps['RdBu_r']


class Row(NamedTuple):
    """A line of the layers' grid: the model's name, what it saw, and as what."""

    label: str
    looks: Sequence[LayerLook]
    view: View


def encode(picture: Picture) -> str:
    """An RGB picture as an address that needs no server."""
    content = cv2.imencode('.png', cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))[1].tobytes()
    return f'data:image/png;base64,{base64.b64encode(content).decode()}'


def fit(picture: Picture, side: int) -> Picture:
    """Resize so that the longer side is this long."""
    height, width = picture.shape[:2]
    scale = side / max(height, width)
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    method = cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA
    return np.asarray(cv2.resize(picture, size, interpolation=method))


def show_message(text: str, wrong: bool = False) -> str:
    role, kind = ('alert', 'wrong') if wrong else ('status', 'fine')
    return f'<p class="il-message {kind}" role="{role}">{escape(text)}</p>'


def show_point(picture: str, point: tuple[float, float] | None) -> str:
    """The image to click on, with a cross at the point (x, y), both counted from 0 to 1."""
    cross = ''
    if point is not None:
        cross = f'<span class="il-cross" style="left:{point[0]:.3%};top:{point[1]:.3%}"></span>'
    return (
        '<figure class="il-point"><figcaption>Your image: click a point</figcaption>'
        f'<div class="il-frame"><img class="il-click" src="{picture}" alt="your image" draggable="false">'
        f'{cross}</div></figure>'
    )


def show_predictions(predictions: Sequence[tuple[str, Statement]]) -> str:
    return f'<div class="il-predictions">{"".join(_prediction(*one) for one in predictions)}</div>'


def _prediction(label: str, prediction: Statement) -> str:
    picture = ''
    if prediction.picture is not None:
        source = encode(fit(prediction.picture, IMAGE_SIDE))
        picture = f'<img src="{source}" alt="prediction of {escape(label)}">'
    bars = ''.join(
        f'<tr><th>{escape(name)}</th><td><span class="il-bar" style="width:{score:.1%}"></span></td>'
        f'<td class="il-number">{score:.1%}</td></tr>'
        for name, score in prediction.scores
    )
    return (
        f'<section class="il-prediction"><h3>{escape(label)}</h3>{picture}'
        f'<p>{escape(prediction.summary)}</p><table class="il-scores">{bars}</table></section>'
    )


def show_layers(rows: Sequence[Row]) -> str:
    """A grid with a column for each layer: attention and residual of each model below one another."""
    count = max(len(row.looks) for row in rows)
    grids = [
        _grid([row._replace(looks=row.looks[first : first + MAX_COLUMNS]) for row in rows])
        for first in range(0, count, MAX_COLUMNS)
    ]
    return f'<div class="il-layers">{"".join(grids)}</div>'


def _grid(rows: Sequence[Row]) -> str:
    columns = max(len(row.looks) for row in rows)
    lines = []
    for row in filter(lambda row: row.looks, rows):
        cells = [_attention(one, row.view) for one in row.looks]
        lines.append((row.label, 'attention', cells))
        if any(one.residual is not None for one in row.looks):
            lines.append((row.label, 'residual', [_residual(one) for one in row.looks]))
    html = ''
    for label, kind, cells in lines:
        html += f'<div class="il-name"><b>{escape(label)}</b><br>{kind}</div>'
        padded = [cell for cell, _ in zip_longest(cells, range(columns), fillvalue='')]
        html += ''.join(f'<div class="il-cell {kind}">{cell}</div>' for cell in padded)
    return f'<div class="il-grid" style="--columns:{columns}">{html}</div>'


def _attention(one: LayerLook, view: View) -> str:
    title = f'{one.layer.name} · {one.attention}'
    caption = f'<figcaption>{escape(title)}<br><small>{one.hw[0]}×{one.hw[1]} tokens</small></figcaption>'
    if one.maps is None:
        return f'<figure>{caption}<p class="il-none">has {one.heads} heads</p></figure>'
    relative = relative_weights(one.maps)
    source = encode(draw_weights(view.shown, relative, one.maps.key_stride))
    left, top, width, height = token_frame(one, view)
    token = (
        f'<span class="il-token" style="left:{left:.3%};top:{top:.3%};width:{width:.3%};'
        f'height:{height:.3%}"></span>'
    )
    reach = _reach(relative - 1)
    return (
        f'<figure>{caption}<div class="il-frame"><img src="{source}" alt="attention in {escape(title)}">'
        f'{token}</div>{_legend(1 - reach, 1, 1 + reach)}</figure>'
    )


def _residual(one: LayerLook) -> str:
    if one.maps is None:
        return ''
    if one.residual is None:
        return '<figure><p class="il-none">no residual</p></figure>'
    added = one.residual.neighbours.numpy()
    reach = _reach(added)
    squares = ''
    for value in added.flatten():
        if np.isnan(value):
            squares += '<span class="il-beyond"></span>'
            continue
        red, green, blue, _ = COLOURS(0.5 + 0.5 * value / reach, bytes=True)
        ink = 'white' if value > 0.6 * reach else 'black'
        squares += f'<span style="background:rgb({red},{green},{blue});color:{ink}">{_short(value)}</span>'
    lengths = f'residual {one.residual.residual:.3g}, attention {one.residual.attention:.3g}'
    legend = f'<i></i><span>0</span><span></span><span>{reach:.3g}</span>'
    return (
        f'<figure><figcaption>{lengths}</figcaption><div class="il-kernel">{squares}</div>'
        f'<div class="il-legend il-up">{legend}</div></figure>'
    )


def relative_weights(maps: LayerMaps) -> NDArray[np.float64]:
    """Weights times the places that are seen (h, w): 1 is what chance gives."""
    weights = maps.weights[0].numpy()
    relative: NDArray[np.float64] = weights * np.count_nonzero(~np.isnan(weights))
    return relative


def draw_weights(image: Picture, relative: NDArray[np.float64], stride: int) -> Picture:
    """Colours over the grey image: red above 1, blue below; places out of sight stay grey."""
    height, width = image.shape[:2]
    large = fit(image, PANEL_SIDE)
    # Which place of the weights each pixel of the picture belongs to; pixels left out go to the last.
    rows = _places(large.shape[0], height / large.shape[0] / stride, relative.shape[0])
    columns = _places(large.shape[1], width / large.shape[1] / stride, relative.shape[1])
    values = relative[rows[:, None], columns[None, :]]
    grey = np.repeat(large.mean(axis=2, keepdims=True), 3, axis=2)
    seen = ~np.isnan(values)
    colours = 255 * COLOURS(0.5 + 0.5 * (np.where(seen, values, 1) - 1) / _reach(relative - 1))[..., :3]
    mixed = np.where(seen[..., None], OPACITY * colours + (1 - OPACITY) * grey, 0.5 * grey + 90)
    return mixed.round().astype(np.uint8)


def _places(pixels: int, step: float, count: int) -> NDArray[np.intp]:
    return np.minimum(((np.arange(pixels) + 0.5) * step).astype(np.intp), count - 1)


def token_frame(one: LayerLook, view: View) -> tuple[float, float, float, float]:
    """Left, top, width and height of the query's token as shares of the view's sides."""
    assert one.maps is not None
    (height, width), stride = view.size, one.maps.stride
    y, x = one.token
    bottom = height if y == one.hw[0] - 1 else min((y + 1) * stride, height)
    right = width if x == one.hw[1] - 1 else min((x + 1) * stride, width)
    left, top = x * stride, y * stride
    return left / width, top / height, (right - left) / width, (bottom - top) / height


def _short(value: float) -> str:
    """Two digits, also where the second is 0."""
    return f'{value:#.2g}'.rstrip('.')


def _legend(low: float, middle: float, high: float) -> str:
    return (
        f'<div class="il-legend"><i></i><span>{low:.3g}</span><span>{middle:g}</span>'
        f'<span>{high:.3g}</span></div>'
    )


def _reach(values: NDArray[np.float64]) -> float:
    return max(float(np.nanmax(np.abs(values))), 1e-6)
