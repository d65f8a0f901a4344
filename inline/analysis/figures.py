"""The figures: PNG files that can be read in a page's width."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from inline.analysis.illustration import LENGTHS, Illustration
from inline.analysis.maps import LayerMaps, Pixel
from inline.analysis.tables import Cell

# One colour a model, the first two as in the report.
COLOURS = ('#2f7de1', '#e2711d', '#2a9d5c', '#8e44ad', '#c0392b', '#17a2a2', '#7f6000', '#d6519b')
GREY = '#777777'
LENGTH_COLOURS = ('#a6c8f2', '#5f9dea', '#2f7de1', '#123f7c')
DPI = 160
# Numbers on a logarithmic axis as people write them.
PLAIN = FuncFormatter(lambda value, _: _write_number(value))
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

Collisions = Mapping[str, tuple[Tensor, Tensor]]
Shares = Mapping[str, tuple[float | None, float | None, float | None]]
# Histograms beside each other; more begin a new line.
MAX_COLUMNS = 3


def draw_illustration(shown: Illustration, path: Path) -> None:
    """The vectors, then a panel for each kind of attention with the weights of the four queries."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 3.6), layout='constrained')
        plane, *panels = figure.subplots(1, 1 + len(shown.weights), width_ratios=(1.1, 1, 1, 1))
        _draw_vectors(plane, shown)
        keys = np.arange(len(shown.keys))
        for panel, (kind, weights) in zip(panels, shown.weights.items(), strict=True):
            panel.sharey(panels[0])
            for i, (length, colour) in enumerate(zip(LENGTHS, LENGTH_COLOURS, strict=True)):
                panel.bar(keys + 0.2 * (i - 1.5), weights[i], 0.18, color=colour, label=f'{length:g}')
            panel.axhline(0, color=GREY, linewidth=0.8)
            panel.set_xticks(keys, [f'$k_{key + 1}$' for key in keys])
            panel.grid(visible=False, axis='x')
            panel.set_title(kind)
            panel.set_xlabel('key')
            panel.set_ylabel('attention weight')
        panels[0].legend(title='length of the query', ncols=2, fontsize=8, title_fontsize=8)
        _save(figure, path)


def _draw_vectors(axes: Any, shown: Illustration) -> None:
    for (x, y), length, colour in zip(
        reversed(shown.queries.tolist()), reversed(LENGTHS), reversed(LENGTH_COLOURS), strict=True
    ):
        axes.annotate('', (x, y), (0, 0), arrowprops={'arrowstyle': '-|>', 'color': colour, 'linewidth': 2.2})
        axes.text(x + 0.02, y - 0.1, f'$q_{length:g}$', color=colour, ha='left', va='top')
    for i, (x, y) in enumerate(shown.keys.tolist()):
        axes.annotate('', (x, y), (0, 0), arrowprops={'arrowstyle': '-|>', 'color': GREY, 'linewidth': 1.2})
        axes.text(1.25 * x, 1.25 * y, f'$k_{i + 1}$', color='black', ha='center', va='center')
    axes.set_xlim(-1.5, 3.6)
    axes.set_ylim(-1.5, 3)
    axes.set_aspect('equal')
    axes.set_title('queries and keys')
    axes.set_xlabel('first channel')
    axes.set_ylabel('second channel')


def draw_injectivity(measured: Mapping[str, Collisions], tolerance: float, path: Path) -> None:
    """A histogram of the colliding pairs of an image for each model; below, the share in each layer."""
    totals = {
        label: sum(found.sum(dim=1) for found, _ in layers.values()).numpy()  # type: ignore[union-attr]
        for label, layers in measured.items()
    }
    with mpl.rc_context(STYLE):
        columns = min(len(measured), MAX_COLUMNS)
        lines = -(-len(measured) // columns)
        figure = Figure(figsize=(max(4.2 * columns, 7), 3.4 * (lines + 1)), layout='constrained')
        grid = figure.add_gridspec(lines + 1, columns)
        bins = _log_bins(max(int(total.max()) for total in totals.values()))
        first = None
        for i, (label, total) in enumerate(totals.items()):
            axes = figure.add_subplot(grid[i // columns, i % columns], sharex=first, sharey=first)
            first = first or axes
            axes.hist(total, bins=bins, color=COLOURS[i % len(COLOURS)])
            axes.set_xscale('symlog', linthresh=1)
            axes.set_xlim(bins[0], bins[-1])
            axes.xaxis.set_major_formatter(PLAIN)
            axes.set_title(f'{label}\nmean: {total.mean():,.1f}', fontsize=10)
            axes.set_xlabel('colliding query pairs of an image')
        assert first is not None
        first.set_ylabel('images')
        first.yaxis.set_major_locator(MaxNLocator(integer=True))
        _draw_layer_shares(figure.add_subplot(grid[lines, :]), measured, tolerance)
        _save(figure, path)


def _draw_layer_shares(axes: Any, measured: Mapping[str, Collisions], tolerance: float) -> None:
    smallest = 1.0
    for i, (label, layers) in enumerate(measured.items()):
        shares = [float(100 * found.sum() / pairs.sum().clamp(min=1)) for found, pairs in layers.values()]
        smallest = min([smallest, *(share for share in shares if share > 0)])
        _plot(axes, shares, i, label=label)
    # Linear below the smallest share that there is, so that zero has a place.
    axes.set_yscale('symlog', linthresh=10 ** np.floor(np.log10(smallest)))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PLAIN)
    axes.set_ylabel(f'pairs closer than {tolerance:g} (%)')
    _name_layers(axes, [list(layers) for layers in measured.values()])
    axes.legend()


def draw_heads(measured: Mapping[str, Collisions], path: Path) -> None:
    """For each model, the histogram of every head of every layer as one row of colours."""
    largest = max(int(found.max()) for layers in measured.values() for found, _ in layers.values())
    bins = _log_bins(largest)
    histograms = {label: head_histograms(layers, bins) for label, layers in measured.items()}
    with mpl.rc_context({**STYLE, 'axes.grid': False}):
        columns = min(len(measured), MAX_COLUMNS)
        lines = -(-len(measured) // columns)
        height = min(max(0.11 * max(map(len, histograms.values())) + 1.2, 3.4), 12)
        figure = Figure(figsize=(3.8 * columns + 1.4, height * lines), layout='constrained')
        panels = figure.subplots(lines, columns, squeeze=False, sharex=True)
        # A single image must be told from none, so colours rise steeply at first.
        norm = PowerNorm(0.5, vmin=0, vmax=100)
        for axes, (label, shares) in zip(panels.flat, histograms.items(), strict=False):
            edges = np.arange(len(shares) + 1)
            drawn = axes.pcolormesh(bins, edges, np.ma.masked_equal(shares, 0), norm=norm, cmap='viridis_r')
            axes.set_xscale('symlog', linthresh=1)
            axes.xaxis.set_major_formatter(PLAIN)
            axes.set_xlabel('colliding query pairs of an image')
            axes.tick_params(labelbottom=True)
            axes.set_title(label)
            _name_rows(axes, {key: found.shape[1] for key, (found, _) in measured[label].items()})
        for axes in panels.flat[len(histograms) :]:
            axes.set_axis_off()
        figure.colorbar(drawn, ax=panels, label='images (%)', ticks=(0, 2, 10, 25, 50, 100), aspect=30)
        _save(figure, path)


def head_histograms(layers: Collisions, bins: Sequence[float]) -> NDArray[np.float64]:
    """Percent of the images with so many colliding pairs, a row for each head of each layer in turn."""
    heads = [head.numpy() for found, _ in layers.values() for head in found.T]
    return np.stack([100 * np.histogram(head, bins)[0] / len(head) for head in heads])


def _name_rows(axes: Any, heads: Mapping[str, int]) -> None:
    """A tick in the middle of the rows of each layer and lines between layers; the first is at the top."""
    ends = np.cumsum(list(heads.values()))
    axes.set_yticks(ends - np.array(list(heads.values())) / 2, list(heads))
    axes.tick_params(axis='y', length=0)
    for end in ends[:-1]:
        axes.axhline(end, color=GREY, linewidth=0.6)
    axes.set_ylim(ends[-1], 0)
    axes.set_ylabel(f'{_layer_title(heads)}, a row for each head')


def draw_locality(measured: Mapping[str, Shares], path: Path) -> None:
    """The share in the neighbourhood over the layers, dashed with local terms, dotted what chance gives."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.4), layout='constrained')
        axes = figure.add_subplot()
        for i, (label, layers) in enumerate(measured.items()):
            attention, with_terms, _ = _percent(layers)
            _plot(axes, attention, i, label=f'{label}: attention')
            if not np.isnan(with_terms).all():
                _plot(axes, with_terms, i, label=f'{label}: attention and local terms', linestyle='--')
        chances = {label: _percent(layers)[2] for label, layers in measured.items()}
        dotted = {'linestyle': ':', 'marker': ''}
        if _agree(list(chances.values())):
            # Of a model with all layers, where another has gaps.
            fullest = min(chances.values(), key=lambda chance: np.isnan(chance).sum())
            _plot(axes, fullest, 0, label='chance: equal weights', color=GREY, **dotted)
        else:
            for i, (label, chance) in enumerate(chances.items()):
                _plot(axes, chance, i, label=f'{label}: chance', **dotted)
        axes.set_ylim(bottom=0)
        axes.set_ylabel('share on the 3×3 neighbourhood (%)')
        _name_layers(axes, [list(layers) for layers in measured.values()])
        figure.legend(loc='outside upper center', ncols=2)
        _save(figure, path)


def draw_masking(rows: Sequence[Sequence[Cell]], path: Path) -> None:
    """Accuracy over the side of the masked window, solid for near keys, dashed for as many random ones."""
    labels = list(dict.fromkeys(str(row[0]) for row in rows))
    windows = list(dict.fromkeys(str(row[2]) for row in rows))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7, 4.2), layout='constrained')
        axes = figure.add_subplot()
        for i, label in enumerate(labels):
            for kind, linestyle in (('local', '-'), ('random', '--')):
                values = [row[4] for row in rows if row[0] == label and row[1] in ('none', kind)]
                _plot(axes, values, i, linestyle=linestyle)
        axes.set_xticks(range(len(windows)), ['nothing', *windows[1:]])
        axes.set_xlabel('masked out for each query: its window, or as many random keys')
        axes.set_ylabel('top-1 accuracy (%)')
        axes.set_ylim(bottom=max(axes.get_ylim()[0], 0))
        handles = [
            Line2D([], [], color=COLOURS[i % len(COLOURS)], marker='o', markersize=4, label=label)
            for i, label in enumerate(labels)
        ]
        handles += [
            Line2D([], [], color=GREY, linestyle=linestyle, label=label)
            for linestyle, label in (('-', 'keys near the query'), ('--', 'random keys'))
        ]
        figure.legend(handles=handles, loc='outside upper center', ncols=2)
        _save(figure, path)


def draw_maps(
    image: NDArray[np.uint8], queries: Sequence[Pixel], maps: Sequence[LayerMaps], path: Path
) -> None:
    """A row for each query: the image, then its weights in every layer. Then the residual's kernels."""
    residuals = _residual_rows(maps, queries)
    rows, columns = len(queries) + len(residuals), 1 + len(maps)
    with mpl.rc_context({**STYLE, 'axes.grid': False, 'axes.titlesize': 10}):
        height = image.shape[0] / image.shape[1]
        figure = Figure(figsize=(2.7 * columns, (2.6 * height + 0.8) * rows), layout='constrained')
        figure.get_layout_engine().set(h_pad=0.1, rect=(0, 0, 1, 0.985))  # type: ignore[union-attr, call-arg]
        panels = figure.subplots(rows, columns, squeeze=False)
        for axes in panels.flat:
            axes.set_axis_off()
        for row, query in zip(panels, queries, strict=False):
            _show_image(row[0], image, query)
            row[0].set_title(_name_query(query))
        for column, one in enumerate(maps, start=1):
            for i, query in enumerate(queries):
                _show_weights(panels[i, column], image, query, one, one.weights[i].numpy())
                panels[i, column].set_title(one.layer.name)
        for row, (i, name) in zip(panels[len(queries) :], residuals.items(), strict=True):
            row[0].text(0.5, 0.5, f'local residual\n{name}', ha='center', va='center')
            for axes, one in zip(row[1:], maps, strict=True):
                if one.residual is not None:
                    _show_grid(axes, one.residual[i].numpy(), 0.0, None, 'weight, mean over channels')
                    axes.set_title(f'{one.layer.name}: 3×3 kernel')
        _save(figure, path)


def _residual_rows(maps: Sequence[LayerMaps], queries: Sequence[Pixel]) -> dict[int, str]:
    """Queries whose residual is drawn, and for whom: all have one kernel unless windows keep them apart."""
    kernels = [one.residual for one in maps if one.residual is not None]
    if not kernels:
        return {}
    if all(bool((each == each[:1]).all()) for each in kernels):
        return {0: 'the same for all queries'}
    return {i: _name_query(query) for i, query in enumerate(queries)}


def _name_query(query: Pixel) -> str:
    return f'query at (y, x) = ({query[0]}, {query[1]}) pixels'


def _show_image(axes: Any, image: NDArray[np.uint8], query: Pixel) -> None:
    axes.imshow(image)
    axes.plot(query[1], query[0], marker='+', markersize=11, markeredgewidth=2.4, color='white')
    axes.plot(query[1], query[0], marker='+', markersize=9, markeredgewidth=1.2, color='#d0021b')


def _show_weights(
    axes: Any, image: NDArray[np.uint8], query: Pixel, one: LayerMaps, weights: NDArray[np.float64]
) -> None:
    """Weights times the number of places: white is 1, the weight of chance, red more, blue less."""
    # The image shows through at places that the query cannot see.
    axes.imshow(image.mean(axis=2), cmap='gray', alpha=0.4)
    seen = np.count_nonzero(~np.isnan(weights))
    extent = (0, weights.shape[1] * one.key_stride, weights.shape[0] * one.key_stride, 0)
    _show_grid(axes, weights * seen, 1.0, extent, 'weight × places')
    y, x = (value // one.stride * one.stride for value in query)
    axes.add_patch(Rectangle((x, y), one.stride, one.stride, fill=False, edgecolor='black', linewidth=1.2))
    axes.set_xlim(0, image.shape[1])
    axes.set_ylim(image.shape[0], 0)


def _show_grid(axes: Any, grid: NDArray[np.float64], centre: float, extent: Any, unit: str) -> None:
    reach = max(float(np.nanmax(np.abs(grid - centre))), 1e-6)
    shown = axes.imshow(grid, cmap='RdBu_r', vmin=centre - reach, vmax=centre + reach, extent=extent)
    bar = axes.figure.colorbar(shown, ax=axes, location='bottom', shrink=0.9, aspect=20, pad=0.03)
    bar.ax.tick_params(labelsize=8)
    bar.set_label(unit, fontsize=8)
    # Both ends and the middle, which is white; two digits of the reach, and fewer ticks where they are long.
    decimals = max(1 - int(np.floor(np.log10(reach))), 0)
    ticks = np.linspace(centre - reach, centre + reach, 5 if decimals < 3 else 3)
    # Plus 0, so that a rounded −0 has no sign.
    bar.set_ticks(ticks, labels=[f'{np.round(tick, decimals) + 0:.{decimals}f}' for tick in ticks])


def _plot(axes: Any, values: Any, index: int, **style: Any) -> None:
    colour = COLOURS[index % len(COLOURS)]
    axes.plot(values, **{'color': colour, 'marker': 'o', 'markersize': 4, 'linewidth': 1.8, **style})


def _name_layers(axes: Any, keys: Sequence[Sequence[str]]) -> None:
    """Ticks by the layers' keys if all models have the same layers, else by their order."""
    longest = max(keys, key=len)
    names = list(longest) if all(list(one) == list(longest) for one in keys) else None
    ticks = list(range(len(longest)))
    axes.set_xticks(ticks, names or [str(tick + 1) for tick in ticks])
    axes.set_xlabel(_layer_title(names or ()))


def _layer_title(names: Iterable[str]) -> str:
    return 'layer (stage.block)' if any('.' in name for name in names) else 'layer'


def _write_number(value: float) -> str:
    for size, letter in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
        if value >= size:
            return f'{value / size:g}{letter}'
    return f'{value:g}'


def _percent(layers: Shares) -> NDArray[np.float64]:
    """Shares of attention, with local terms and of chance (3, layers); NaN where there is none."""
    return 100 * np.array(list(layers.values()), dtype=np.float64).T


def _agree(curves: Sequence[NDArray[np.float64]]) -> bool:
    """Whether the curves are the same wherever they have values."""
    if len({len(curve) for curve in curves}) > 1:
        return False
    known = np.stack(curves)
    known = known[:, ~np.isnan(known).all(axis=0)]
    return bool((np.nanmax(known, axis=0) - np.nanmin(known, axis=0)).max() < 1e-3)


def _log_bins(largest: int) -> list[float]:
    """Bins of zero, then five to a decade."""
    decades = int(np.ceil(np.log10(max(largest, 10))))
    return [0.0, *np.logspace(0, decades, 5 * decades + 1)]


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=DPI)
