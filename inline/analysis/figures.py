"""Figures of the analyses, written as PNG files."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from inline.analysis.illustration import ATTENTIONS, Panel
from inline.analysis.maps import LayerMaps, Pixel
from inline.utils.drawing import CHART_COLORS
from inline.utils.tables import Cell

GRAY = '#777777'
# From the shortest to the longest query.
QUERY_COLORS = ('#a6c8f2', '#5f9dea', '#2f7de1', '#123f7c')
MAPPED_COLOR = '#c2571a'
DPI = 160
# Panels per row.
MAX_COLUMNS = 3
STYLE = {
    'font.size': 10,
    'font.family': 'sans-serif',
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.grid': True,
    'axes.axisbelow': True,
    'grid.alpha': 0.2,
    'legend.frameon': False,
}

# By layer key: colliding pairs and all pairs, each (images, heads).
Collisions = Mapping[str, tuple[Tensor, ...]]
# By layer key: the shares of attention, of attention with local terms, and of chance.
Shares = Mapping[str, tuple[float | None, ...]]


def draw_illustration(panels: Sequence[Panel], path: Path) -> None:
    """Draw one row per panel: the vectors, and the weights of the four queries under each attention."""
    with _new_figure(path, 13, 3.4 * len(panels)) as figure:
        columns = 1 + len(ATTENTIONS)
        grid = figure.subplots(
            len(panels), columns, squeeze=False, width_ratios=[1.1] + [1] * len(ATTENTIONS)
        )
        for (plane, *axes_row), panel in zip(grid, panels, strict=True):
            _draw_vectors(plane, panel)
            for axes, (name, weights) in zip(axes_row, panel.weights.items(), strict=True):
                _draw_weights(axes, weights)
                axes.set(title=f'{name}, {panel.kernel}' if name != 'softmax' else name)
        grid[0, 1].legend(ncols=4, fontsize=8, loc='upper center', columnspacing=0.8, handlelength=1)


def _draw_weights(axes: Any, weights: Tensor) -> None:
    """Draw a group of bars per key, one bar per query, with the weight above each bar."""
    keys = np.arange(weights.shape[1])
    for i, (row, color) in enumerate(zip(weights.numpy(), QUERY_COLORS, strict=True)):
        bars = axes.bar(keys + 0.22 * (i - 1.5), row, 0.2, color=color, label=f'$q_{i + 1}$')
        axes.bar_label(bars, fmt='%.2f', rotation=90, fontsize=7, padding=2)
    axes.set_xticks(keys, [f'$k_{key + 1}$' for key in keys])
    axes.grid(visible=False, axis='x')
    axes.set(ylim=(0, 0.6), ylabel='attention weight')


def _draw_vectors(axes: Any, panel: Panel) -> None:
    def draw_arrow(x: float, y: float, color: str, width: float, **style: Any) -> None:
        arrow = {'arrowstyle': '-|>', 'color': color, 'linewidth': width, 'shrinkA': 0, 'shrinkB': 0}
        axes.annotate('', (x, y), (0, 0), arrowprops={**arrow, **style})

    for i, (x, y) in enumerate(panel.keys.tolist()):
        draw_arrow(x, y, GRAY, 1.2)
        axes.text(1.08 * x, 1.08 * y, f'$k_{i + 1}$', color='black', ha='center', va='center')
    if panel.mapped:
        for x, y in panel.phi(panel.queries).tolist():
            draw_arrow(x, y, MAPPED_COLOR, 1.0, linestyle='--')
        axes.text(x + 0.06, y, r'$\phi(q)$', color=MAPPED_COLOR, ha='left', va='top')
    for i, ((x, y), color) in reversed(
        list(enumerate(zip(panel.queries.tolist(), QUERY_COLORS, strict=True)))
    ):
        draw_arrow(x, y, color, 2.2)
        axes.text(x - 0.09, y, f'$q_{i + 1}$', color=color, ha='right', va='center')
    axes.set(xlim=(-0.25, 2.45), ylim=(-0.1, 2.2), aspect='equal')
    axes.set(title=f'({panel.name}) queries and keys', xlabel='first channel', ylabel='second channel')


def draw_injectivity(measured: Mapping[str, Collisions], tolerance: float, path: Path) -> None:
    """Draw one histogram of the colliding pairs per image for each model, and the share per layer below."""
    totals = {
        label: sum(found.sum(dim=1) for found, _ in layers.values()).numpy()  # type: ignore[union-attr]
        for label, layers in measured.items()
    }
    columns = min(len(measured), MAX_COLUMNS)
    rows = math.ceil(len(measured) / columns)
    with _new_figure(path, max(4.2 * columns, 7), 3.4 * (rows + 1)) as figure:
        grid = figure.add_gridspec(rows + 1, columns)
        bins = _log_bins(max(int(total.max()) for total in totals.values()))
        first = None
        for i, (label, total) in enumerate(totals.items()):
            axes = figure.add_subplot(grid[divmod(i, columns)], sharex=first, sharey=first)
            first = first or axes
            axes.hist(total, bins=bins, color=CHART_COLORS[i % len(CHART_COLORS)])
            _format_pair_axis(axes)
            axes.set_xlim(bins[0], bins[-1])
            axes.set_title(f'{label}\nmean: {total.mean():,.1f}', fontsize=10)
        assert first is not None
        first.set_ylabel('images')
        first.yaxis.set_major_locator(MaxNLocator(integer=True))
        _draw_layer_shares(figure.add_subplot(grid[rows, :]), measured, tolerance)


def _format_pair_axis(axes: Any) -> None:
    axes.set_xscale('symlog', linthresh=1)
    # 200, 10k, 3M.
    axes.xaxis.set_major_formatter(EngFormatter(sep=''))
    axes.set_xlabel('colliding query pairs per image')


def _draw_layer_shares(axes: Any, measured: Mapping[str, Collisions], tolerance: float) -> None:
    smallest = 1.0
    for i, (label, layers) in enumerate(measured.items()):
        shares = [float(100 * found.sum() / pairs.sum().clamp(min=1)) for found, pairs in layers.values()]
        smallest = min([smallest, *(share for share in shares if share > 0)])
        _plot(axes, shares, i, label=label)
    # Linear below the smallest positive share, to include zero.
    axes.set_yscale('symlog', linthresh=10 ** np.floor(np.log10(smallest)))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter('{x:g}')
    axes.set_ylabel(f'pairs closer than {tolerance:g} (%)')
    _label_layers(axes, [list(layers) for layers in measured.values()])
    axes.legend()


def draw_heads(measured: Mapping[str, Collisions], path: Path) -> None:
    """Draw the histogram of each head of each layer as one row of colours, one panel per model."""
    largest = max(int(found.max()) for layers in measured.values() for found, _ in layers.values())
    bins = _log_bins(largest)
    histograms = {label: head_histograms(layers, bins) for label, layers in measured.items()}
    columns = min(len(measured), MAX_COLUMNS)
    rows = math.ceil(len(measured) / columns)
    height = min(max(0.11 * max(map(len, histograms.values())) + 1.2, 3.4), 12)
    with _new_figure(path, 3.8 * columns + 1.4, height * rows, **{'axes.grid': False}) as figure:
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True)
        # The colour scale is steep near zero, so that a single image is visible.
        norm = PowerNorm(0.5, vmin=0, vmax=100)
        for axes, (label, shares) in zip(panels.flat, histograms.items(), strict=False):
            edges = np.arange(len(shares) + 1)
            drawn = axes.pcolormesh(bins, edges, np.ma.masked_equal(shares, 0), norm=norm, cmap='viridis_r')
            _format_pair_axis(axes)
            axes.tick_params(labelbottom=True)
            axes.set_title(label)
            _label_heads(axes, {key: found.shape[1] for key, (found, _) in measured[label].items()})
        for axes in panels.flat[len(histograms) :]:
            axes.set_axis_off()
        figure.colorbar(drawn, ax=panels, label='images (%)', ticks=(0, 2, 10, 25, 50, 100), aspect=30)


def head_histograms(layers: Collisions, bins: Sequence[float]) -> NDArray[np.float64]:
    """Return the percentage of images per bin of colliding pairs, (heads of all layers, bins)."""
    heads = [head.numpy() for found, _ in layers.values() for head in found.T]
    return np.stack([100 * np.histogram(head, bins)[0] / len(head) for head in heads])


def _label_heads(axes: Any, heads: Mapping[str, int]) -> None:
    """Label the rows of each layer and separate layers by lines; the first layer is at the top."""
    ends = np.cumsum(list(heads.values()))
    axes.set_yticks(ends - np.array(list(heads.values())) / 2, list(heads))
    axes.tick_params(axis='y', length=0)
    for end in ends[:-1]:
        axes.axhline(end, color=GRAY, linewidth=0.6)
    axes.set_ylim(ends[-1], 0)
    axes.set_ylabel(f'{_layer_label(heads)}, a row for each head')


def draw_locality(measured: Mapping[str, Shares], path: Path) -> None:
    """Draw the local share over the layers: solid for attention, dashed with local terms, dotted chance."""
    with _new_figure(path, 8, 4.4) as figure:
        axes = figure.add_subplot()
        for i, (label, layers) in enumerate(measured.items()):
            attention, with_terms, _ = _percent(layers)
            _plot(axes, attention, i, label=f'{label}: attention')
            if not np.isnan(with_terms).all():
                _plot(axes, with_terms, i, label=f'{label}: attention and local terms', linestyle='--')
        chances = {label: _percent(layers)[2] for label, layers in measured.items()}
        dotted = {'linestyle': ':', 'marker': ''}
        if _are_equal(list(chances.values())):
            # Layers with spatial reduction are gaps in the curve: draw the curve with the fewest.
            complete = min(chances.values(), key=lambda chance: np.isnan(chance).sum())
            _plot(axes, complete, 0, label='chance: equal weights', color=GRAY, **dotted)
        else:
            for i, (label, chance) in enumerate(chances.items()):
                _plot(axes, chance, i, label=f'{label}: chance', **dotted)
        axes.set_ylim(bottom=0)
        axes.set_ylabel('share on the 3×3 neighbourhood (%)')
        _label_layers(axes, [list(layers) for layers in measured.values()])
        figure.legend(loc='outside upper center', ncols=2)


def draw_masking(rows: Sequence[Sequence[Cell]], path: Path) -> None:
    """Draw the accuracy over the masked window: solid for neighbours, dashed for as many random keys."""
    labels = list(dict.fromkeys(str(row[0]) for row in rows))
    windows = list(dict.fromkeys(str(row[2]) for row in rows))
    with _new_figure(path, 7, 4.2) as figure:
        axes = figure.add_subplot()
        for i, label in enumerate(labels):
            for masked, style in (('local', {'label': label}), ('random', {'linestyle': '--'})):
                values = [row[4] for row in rows if row[0] == label and row[1] in ('none', masked)]
                _plot(axes, values, i, **style)
        axes.set_xticks(range(len(windows)), ['nothing', *windows[1:]])
        axes.set_xlabel('masked keys of each query: its window, or as many random keys')
        axes.set_ylabel('top-1 accuracy (%)')
        axes.set_ylim(bottom=max(axes.get_ylim()[0], 0))
        # Legend entries of the line styles.
        axes.plot([], color=GRAY, label='keys near the query')
        axes.plot([], color=GRAY, linestyle='--', label='random keys')
        figure.legend(loc='outside upper center', ncols=2)


def draw_maps(
    image: NDArray[np.uint8], queries: Sequence[Pixel], maps: Sequence[LayerMaps], path: Path
) -> None:
    """Draw one row per query with the image and the weights in each layer, then the residual kernels."""
    residuals = _residual_rows(maps, queries)
    rows, columns = len(queries) + len(residuals), 1 + len(maps)
    height = (2.6 * image.shape[0] / image.shape[1] + 0.8) * rows
    with _new_figure(path, 2.7 * columns, height, **{'axes.grid': False, 'axes.titlesize': 10}) as figure:
        figure.get_layout_engine().set(h_pad=0.1, rect=(0, 0, 1, 0.985))  # type: ignore[union-attr, call-arg]
        panels = figure.subplots(rows, columns, squeeze=False)
        for axes in panels.flat:
            axes.set_axis_off()
        for i, (row, query) in enumerate(zip(panels, queries, strict=False)):
            _show_image(row[0], image, query)
            row[0].set_title(_format_query(query))
            for axes, layer_map in zip(row[1:], maps, strict=True):
                _show_weights(axes, image, query, layer_map, layer_map.weights[i].numpy())
                axes.set_title(layer_map.layer.name)
        for row, (i, name) in zip(panels[len(queries) :], residuals.items(), strict=True):
            row[0].text(0.5, 0.5, f'local residual\n{name}', ha='center', va='center')
            for axes, layer_map in zip(row[1:], maps, strict=True):
                if layer_map.residual is not None:
                    kernel = layer_map.residual[i].numpy()
                    _show_grid(axes, kernel, 0.0, None, 'weight, mean over channels')
                    axes.set_title(f'{layer_map.layer.name}: 3×3 kernel')


def _residual_rows(maps: Sequence[LayerMaps], queries: Sequence[Pixel]) -> dict[int, str]:
    """Return the queries whose residual is drawn, with a label. Without windows all share one kernel."""
    kernels = [layer_map.residual for layer_map in maps if layer_map.residual is not None]
    if not kernels:
        return {}
    if all(bool((kernel == kernel[:1]).all()) for kernel in kernels):
        return {0: 'the same for all queries'}
    return {i: _format_query(query) for i, query in enumerate(queries)}


def _format_query(query: Pixel) -> str:
    return f'query at (y, x) = ({query[0]}, {query[1]}) pixels'


def _show_image(axes: Any, image: NDArray[np.uint8], query: Pixel) -> None:
    axes.imshow(image)
    axes.plot(query[1], query[0], marker='+', markersize=11, markeredgewidth=2.4, color='white')
    axes.plot(query[1], query[0], marker='+', markersize=9, markeredgewidth=1.2, color='#d0021b')


def _show_weights(
    axes: Any, image: NDArray[np.uint8], query: Pixel, maps: LayerMaps, weights: NDArray[np.float64]
) -> None:
    """Draw weights times the number of keys: white is 1 (a uniform weight), red more, blue less."""
    # The image stays visible where the query cannot attend.
    axes.imshow(image.mean(axis=2), cmap='gray', alpha=0.4)
    keys = np.count_nonzero(~np.isnan(weights))
    extent = (0, weights.shape[1] * maps.key_stride, weights.shape[0] * maps.key_stride, 0)
    _show_grid(axes, weights * keys, 1.0, extent, 'weight × keys')
    y, x = (value // maps.stride * maps.stride for value in query)
    axes.add_patch(Rectangle((x, y), maps.stride, maps.stride, fill=False, edgecolor='black', linewidth=1.2))
    axes.set(xlim=(0, image.shape[1]), ylim=(image.shape[0], 0))


def _show_grid(axes: Any, grid: NDArray[np.float64], center: float, extent: Any, label: str) -> None:
    scale = max(float(np.nanmax(np.abs(grid - center))), 1e-6)
    shown = axes.imshow(grid, cmap='RdBu_r', vmin=center - scale, vmax=center + scale, extent=extent)
    bar = axes.figure.colorbar(shown, ax=axes, location='bottom', shrink=0.9, aspect=20, pad=0.03)
    bar.ax.tick_params(labelsize=8)
    bar.set_label(label, fontsize=8)
    # Ticks at both ends and at the centre (white), with two significant digits; fewer if the labels are long.
    decimals = max(1 - int(np.floor(np.log10(scale))), 0)
    ticks = np.linspace(center - scale, center + scale, 5 if decimals < 3 else 3)
    # Adding 0 turns −0 into 0.
    bar.set_ticks(ticks, labels=[f'{np.round(tick, decimals) + 0:.{decimals}f}' for tick in ticks])


@contextmanager
def _new_figure(path: Path, width: float, height: float, **style: Any) -> Iterator[Figure]:
    """Yield a figure of width × height inches, which is saved at the end of the context."""
    with mpl.rc_context({**STYLE, **style}):
        figure = Figure(figsize=(width, height), layout='constrained')
        yield figure
        figure.savefig(path, dpi=DPI)


def _plot(axes: Any, values: Any, index: int, **style: Any) -> None:
    color = CHART_COLORS[index % len(CHART_COLORS)]
    axes.plot(values, **{'color': color, 'marker': 'o', 'markersize': 4, 'linewidth': 1.8, **style})


def _label_layers(axes: Any, keys: Sequence[list[str]]) -> None:
    """Label the ticks by layer keys if all models have the same layers, else by number."""
    longest = max(keys, key=len)
    names = longest if all(other == longest for other in keys) else [str(i + 1) for i in range(len(longest))]
    axes.set_xticks(range(len(longest)), names)
    axes.set_xlabel(_layer_label(names))


def _layer_label(names: Iterable[str]) -> str:
    return 'layer (stage.block)' if any('.' in name for name in names) else 'layer'


def _percent(layers: Shares) -> NDArray[np.float64]:
    """Return the three shares of each layer in percent, (3, layers), with NaN for None."""
    return 100 * np.array(list(layers.values()), dtype=np.float64).T


def _are_equal(curves: Sequence[NDArray[np.float64]]) -> bool:
    """Return whether the curves are equal wherever they have values."""
    if len({len(curve) for curve in curves}) > 1:
        return False
    known = np.ma.masked_invalid(np.stack(curves))
    return bool((known.max(axis=0) - known.min(axis=0)).max() < 1e-3)


def _log_bins(largest: int) -> list[float]:
    """Return bin edges: [0, 1), then five bins per decade."""
    decades = int(np.ceil(np.log10(max(largest, 10))))
    return [0.0, *np.logspace(0, decades, 5 * decades + 1)]
