"""The paper's Figure 5: InLine against softmax by accuracy, window size and resolution.

(a) Published accuracy against measured runtime; (b) Swin-T by window size; (c) DeiT-T by image size. The
softmax models have their published architectures and use torch's fused attention.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from inline.benchmark.timing import BenchmarkSettings, interleave, make_inference
from inline.models import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin
from inline.models.backbones import deit, pvt
from inline.utils.drawing import CHART_COLORS
from inline.utils.tables import read_csv, write_csv

WINDOWS = (7, 14, 28, 56)
RESOLUTIONS = (224, 384, 512, 640, 768, 1024)
# Sizes by their letter in the paper.
ARCHS = {'T': 'tiny', 'S': 'small', 'M': 'medium', 'B': 'base', 'L': 'large'}
COLORS = dict(zip(('InLine', 'softmax'), CHART_COLORS, strict=False))


# The published softmax models have heads of 64 channels, InLine has heads of 32.
SOFTMAX = {'type': 'Softmax'}
DEIT_TINY = replace(deit.ARCHS['tiny'], num_heads=3)
PVT_HEADS = (1, 2, 5, 8)


def softmax_deit_tiny(img_size: int | None = None) -> InLineDeiT:
    return InLineDeiT(asdict(DEIT_TINY), img_size=img_size, mixers=SOFTMAX)


def softmax_pvt(arch: str) -> InLinePVT:
    return InLinePVT(asdict(replace(pvt.ARCHS[arch], num_heads=PVT_HEADS)), mixers=SOFTMAX)


class Family(NamedTuple):
    """A model family of panel (a).

    Args:
        inline, softmax: Build the model of an arch.
        sizes: Letters of the sizes from small to large.
        marker: Marker in the figure.
    """

    inline: Callable[[str], nn.Module]
    softmax: Callable[[str], nn.Module]
    sizes: str
    marker: str


FAMILIES = {
    'PVT': Family(InLinePVT, softmax_pvt, 'TSML', 'o'),
    'Swin': Family(InLineSwin, partial(InLineSwin, mixers=SOFTMAX), 'TSB', 's'),
    'CSwin': Family(InLineCSwin, partial(InLineCSwin, mixers=SOFTMAX), 'TSB', '^'),
}


@dataclass(frozen=True)
class Point:
    """One measured model. `top1` is the published accuracy and only set in panel (a)."""

    panel: str
    family: str
    attention: str
    setting: str
    milliseconds: float
    spread: float
    top1: float | None
    conditions: str


@dataclass(frozen=True)
class Pair:
    """An InLine model and a softmax model to compare.

    Args:
        family: Name of the model family.
        setting: Size, window or resolution, as in :class:`Point`.
        size: Side of the input image in pixels.
        models: By attention.
        top1: Published accuracy by attention.
    """

    family: str
    setting: str
    size: int
    models: Mapping[str, nn.Module]
    top1: dict[str, float] = field(default_factory=dict)


def measure_figure5(accuracies: Path, settings: BenchmarkSettings, conditions: str) -> Iterator[Point]:
    """Measure all points. The models of a pair are timed alternately.

    Args:
        accuracies: CSV with the columns model, resolution and top1.
        settings: How to time.
        conditions: Hardware, threads and so on, in one line.
    """
    for panel, pairs in (
        ('a', accuracy_pairs(accuracies)),
        ('b', window_pairs(WINDOWS)),
        ('c', resolution_pairs(RESOLUTIONS)),
    ):
        for pair in pairs:
            yield from _measure(panel, pair, settings, conditions)


def accuracy_pairs(accuracies: Path) -> Iterator[Pair]:
    published = {row['model']: row['top1'] for row in read_csv(accuracies) if row['resolution'] == '224'}
    for name, family in FAMILIES.items():
        for letter in family.sizes:
            size, arch = f'{name}-{letter}', ARCHS[letter]
            inline, softmax = published.get(f'InLine-{size}'), published.get(size)
            if inline and softmax:
                models = {'InLine': family.inline(arch), 'softmax': family.softmax(arch)}
                yield Pair(name, size, 224, models, {'InLine': float(inline), 'softmax': float(softmax)})


def window_pairs(windows: Iterable[int]) -> Iterator[Pair]:
    for window in windows:
        inline, softmax = (
            InLineSwin('tiny', mixers={'type': mixer, 'window_size': window})
            for mixer in ('InLine', 'Softmax')
        )
        yield Pair('Swin-T', str(window), 224, {'InLine': inline, 'softmax': softmax})


def resolution_pairs(resolutions: Iterable[int]) -> Iterator[Pair]:
    for size in resolutions:
        models = {'InLine': InLineDeiT('tiny', img_size=size), 'softmax': softmax_deit_tiny(size)}
        yield Pair('DeiT-T', str(size), size, models)


def _measure(panel: str, pair: Pair, settings: BenchmarkSettings, conditions: str) -> Iterator[Point]:
    image = torch.randn(settings.batch, 3, pair.size, pair.size, device=settings.device)
    runs = {
        attention: make_inference(model.to(settings.device).eval(), image, settings.dtype)
        for attention, model in pair.models.items()
    }
    for attention, timing in interleave(runs, settings.repetitions, settings.device).items():
        yield Point(
            panel,
            pair.family,
            attention,
            pair.setting,
            round(timing.median * 1e3 / settings.batch, 2),
            round(timing.spread, 3),
            pair.top1.get(attention),
            conditions,
        )


def write_points(points: Iterable[Point], path: Path) -> None:
    write_csv(path, [field.name for field in fields(Point)], map(astuple, points))


def draw_figure5(points: Iterable[Point], path: Path) -> None:
    """Draw the three panels side by side, with the measurement conditions below."""
    points = list(points)
    with mpl.rc_context({'axes.spines.top': False, 'axes.spines.right': False, 'legend.frameon': False}):
        figure = Figure(figsize=(13, 4.2), layout='constrained')
        accuracies, windows, resolutions = figure.subplots(1, 3)
        _draw_accuracies(accuracies, [point for point in points if point.panel == 'a'])
        _draw_times(windows, [point for point in points if point.panel == 'b'])
        _draw_times(resolutions, [point for point in points if point.panel == 'c'])
        accuracies.set(
            title='(a) Accuracy against runtime', xlabel='ms per image', ylabel='published top-1 (%)'
        )
        windows.set(title='(b) Swin-T, window size', xlabel='window side (tokens)', ylabel='ms per image')
        resolutions.set(title='(c) DeiT-T, resolution', xlabel='image side (pixels)', ylabel='ms per image')
        figure.supxlabel(points[0].conditions, fontsize=8, color='#555555')
        figure.savefig(path, dpi=160)


def _draw_accuracies(axis: Axes, points: list[Point]) -> None:
    """Draw one line per family and attention, dotted where a size in between has no point."""
    all_skipped = set()
    for family, attention in sorted({(point.family, point.attention) for point in points}):
        line = [point for point in points if (point.family, point.attention) == (family, attention)]
        color = COLORS[attention]
        xs = [point.milliseconds for point in line]
        ys = [math.nan if point.top1 is None else point.top1 for point in line]
        axis.plot(xs, ys, FAMILIES[family].marker, color=color, label=f'{family}, {attention}')
        for i, (point, following) in enumerate(pairwise(line)):
            skipped = skipped_sizes(point, following)
            all_skipped.update(skipped)
            axis.plot(xs[i : i + 2], ys[i : i + 2], ':' if skipped else '-', color=color)
    note = f'dotted: no published\naccuracy of {", ".join(sorted(all_skipped))}' if all_skipped else None
    axis.legend(title=note, title_fontsize=8, alignment='left', loc='lower right')


def skipped_sizes(first: Point, second: Point) -> list[str]:
    """Return the sizes of a family between those of two points, for example Swin-S."""
    sizes = [f'{first.family}-{letter}' for letter in FAMILIES[first.family].sizes]
    return sizes[sizes.index(first.setting) + 1 : sizes.index(second.setting)]


def _draw_times(axis: Axes, points: list[Point]) -> None:
    for attention, color in COLORS.items():
        line = [point for point in points if point.attention == attention]
        xs, ys = [float(point.setting) for point in line], [point.milliseconds for point in line]
        axis.plot(xs, ys, marker='o', color=color, label=attention)
    axis.legend()
