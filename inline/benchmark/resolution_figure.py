"""The figure of :mod:`inline.benchmark.resolution`: time and peak memory against the side of the image."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from inline.benchmark.resolution import EXTRAPOLATED, GPU_MEMORY, MODELS, Point
from inline.utils.drawing import CHART_COLORS

COLORS = dict(zip(MODELS, CHART_COLORS, strict=False))


def draw_resolution(points: Sequence[Point], path: Path) -> None:
    """Draw time and memory side by side; the points where memory reaches that of a GPU are hollow."""
    with mpl.rc_context({'axes.spines.top': False, 'axes.spines.right': False, 'legend.frameon': False}):
        figure = Figure(figsize=(11, 4.8), layout='constrained')
        time, memory = figure.subplots(1, 2)
        for name, color in COLORS.items():
            line = [point for point in points if point.attention == name and point.is_measured]
            sizes = [point.size for point in line]
            time.plot(sizes, [p.seconds for p in line], marker='o', color=color, label=name)
            memory.plot(sizes, [(p.peak_mb or 0) / 1024 for p in line], marker='o', color=color, label=name)
        _draw_crossings(memory, points)
        time.set(title='Time of a forward pass', ylabel='seconds')
        memory.set(title='Peak memory of the process', ylabel='GB')
        for axes in (time, memory):
            _set_sizes(axes, points)
        time.legend()
        figure.supxlabel(f'Swin-T; {points[0].conditions}', fontsize=8, color='#555555')
        figure.savefig(path, dpi=160)


def _draw_crossings(axes: Axes, points: Sequence[Point]) -> None:
    """Mark the memory of a GPU, and where each attention reaches it within the measured sizes."""
    limit = GPU_MEMORY / 1024
    largest = max(point.size for point in points if point.is_measured)
    axes.axhline(limit, color='#888888', linewidth=1, linestyle='--')
    axes.annotate(f'{limit:.0f} GB', (largest, limit), color='#555555', ha='right', va='bottom')
    for point in points:
        line = [p for p in points if p.attention == point.attention and p.is_measured]
        if point.note != EXTRAPOLATED or point.size > largest or not line:
            continue
        color = COLORS[point.attention]
        start = (line[-1].size, (line[-1].peak_mb or 0) / 1024)
        axes.plot([start[0], point.size], [start[1], limit], color=color, linestyle=':')
        axes.plot(point.size, limit, marker='o', color=color, markerfacecolor='white')
        axes.annotate(
            f'{point.size} pixels\n(extrapolated)',
            (point.size, limit),
            xytext=(6, -4),
            textcoords='offset points',
            va='top',
            color=color,
        )


def _set_sizes(axes: Axes, points: Sequence[Point]) -> None:
    sizes = sorted({point.size for point in points if point.is_measured})
    axes.set(xscale='log', yscale='log', xlabel='side of the image (pixels)')
    # Neighbouring labels would overlap.
    shown = [size for i, size in enumerate(sizes) if i % 2 == 0 or len(sizes) < 6]
    axes.set_xticks(shown, [str(size) for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter('{x:g}')
    axes.yaxis.set_minor_formatter(NullFormatter())
