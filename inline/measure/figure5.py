"""The paper's Figure 5: InLine against softmax in accuracy, window size and resolution.

(a) Accuracy against runtime, the accuracies being the published ones; (b) Swin-T with windows of growing
size; (c) DeiT-T on images of growing size. Softmax is torch's fused attention, in models as published.
"""

import csv
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import nn

from inline.measure.models import Settings, inference
from inline.measure.published import SOFTMAX, softmax_deit_tiny, softmax_pvt
from inline.measure.timing import interleave
from inline.models import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin

WINDOWS = (7, 14, 28, 56)
RESOLUTIONS = (224, 384, 512, 640, 768, 1024)
# Sizes by the letter that the paper gives them.
ARCHS = {'T': 'tiny', 'S': 'small', 'M': 'medium', 'B': 'base', 'L': 'large'}
COLOURS = {'InLine': '#2f7de1', 'softmax': '#e2711d'}


class Family(NamedTuple):
    """A family of panel (a): its models, its sizes from small to large, how its points look."""

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
    """One measured model; the accuracy is the published one, in panel (a) alone."""

    panel: str
    family: str
    attention: str
    setting: str
    milliseconds: float
    spread: float
    top1: float | None
    conditions: str


@dataclass(frozen=True)
class Subject:
    """What a point is measured of."""

    family: str
    attention: str
    setting: str
    model: nn.Module
    size: int
    top1: float | None = None


def measure_figure5(accuracies: Path, settings: Settings, conditions: str) -> Iterator[Point]:
    """All points; models of one family and setting are timed in turn.

    Args:
        accuracies: CSV with the columns model and top1.
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


def accuracy_pairs(accuracies: Path) -> Iterator[list[Subject]]:
    with accuracies.open(newline='') as file:
        published = {row['model']: row['top1'] for row in csv.DictReader(file) if row['resolution'] == '224'}
    for family, made in FAMILIES.items():
        for letter in made.sizes:
            name, arch = f'{family}-{letter}', ARCHS[letter]
            ours, theirs = published.get(f'InLine-{name}'), published.get(name)
            if ours and theirs:
                yield [
                    Subject(family, 'InLine', name, made.inline(arch), 224, float(ours)),
                    Subject(family, 'softmax', name, made.softmax(arch), 224, float(theirs)),
                ]


def window_pairs(windows: Iterable[int]) -> Iterator[list[Subject]]:
    for window in windows:
        yield [
            Subject(
                'Swin-T',
                attention,
                str(window),
                InLineSwin('tiny', mixers={'type': kind, 'window_size': window}),
                224,
            )
            for attention, kind in (('InLine', 'InLine'), ('softmax', 'Softmax'))
        ]


def resolution_pairs(resolutions: Iterable[int]) -> Iterator[list[Subject]]:
    for size in resolutions:
        yield [
            Subject('DeiT-T', 'InLine', str(size), InLineDeiT('tiny', img_size=size), size),
            Subject('DeiT-T', 'softmax', str(size), softmax_deit_tiny(size), size),
        ]


def _measure(panel: str, pair: list[Subject], settings: Settings, conditions: str) -> Iterator[Point]:
    runs = {
        subject.attention: inference(
            subject.model.to(settings.device).eval(),
            torch.randn(settings.batch, 3, subject.size, subject.size, device=settings.device),
            settings.dtype,
        )
        for subject in pair
    }
    timings = interleave(runs, settings.repetitions, settings.device)
    for subject in pair:
        timing = timings[subject.attention]
        yield Point(
            panel,
            subject.family,
            subject.attention,
            subject.setting,
            round(timing.median * 1e3 / settings.batch, 2),
            round(timing.spread, 3),
            subject.top1,
            conditions,
        )


def write_points(points: Iterable[Point], path: Path) -> None:
    with path.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow([field.name for field in fields(Point)])
        writer.writerows(astuple(point) for point in points)


def draw_figure5(points: Iterable[Point], path: Path) -> None:
    """The three panels side by side, what they were measured on below them."""
    points = list(points)
    with mpl.rc_context({'axes.spines.top': False, 'axes.spines.right': False, 'legend.frameon': False}):
        figure = Figure(figsize=(13, 4.2), layout='constrained')
        accuracies, windows, resolutions = figure.subplots(1, 3)
        _draw_accuracies(accuracies, [point for point in points if point.panel == 'a'])
        _draw_times(windows, [point for point in points if point.panel == 'b'])
        _draw_times(resolutions, [point for point in points if point.panel == 'c'])
        accuracies.set(
            title='(a) Accuracy against runtime', xlabel='ms an image', ylabel='published top-1 (%)'
        )
        windows.set(
            title='(b) Swin-T, window size', xlabel='side of the window (tokens)', ylabel='ms an image'
        )
        resolutions.set(
            title='(c) DeiT-T, resolution', xlabel='side of the image (pixels)', ylabel='ms an image'
        )
        figure.supxlabel(points[0].conditions, fontsize=8, color='#555555')
        FigureCanvasAgg(figure)
        figure.savefig(path, dpi=160)


def _draw_accuracies(axis: Axes, points: list[Point]) -> None:
    """A line for each family and attention, dotted over sizes that have no point."""
    gaps = set()
    for family, attention in sorted({(point.family, point.attention) for point in points}):
        own = [point for point in points if (point.family, point.attention) == (family, attention)]
        colour = COLOURS[attention]
        xs = [point.milliseconds for point in own]
        ys = [math.nan if point.top1 is None else point.top1 for point in own]
        axis.plot(xs, ys, FAMILIES[family].marker, color=colour, label=f'{family}, {attention}')
        for i in range(len(own) - 1):
            left_out = sizes_between(own[i], own[i + 1])
            gaps.update(left_out)
            axis.plot(xs[i : i + 2], ys[i : i + 2], ':' if left_out else '-', color=colour)
    note = f'dotted past {", ".join(sorted(gaps))}:\naccuracy not in the table' if gaps else None
    axis.legend(title=note, title_fontsize=8, alignment='left', loc='lower right')


def sizes_between(first: Point, second: Point) -> list[str]:
    """The sizes of a family between those of two points, for example Swin-S."""
    sizes = [f'{first.family}-{letter}' for letter in FAMILIES[first.family].sizes]
    return sizes[sizes.index(first.setting) + 1 : sizes.index(second.setting)]


def _draw_times(axis: Axes, points: list[Point]) -> None:
    for attention, colour in COLOURS.items():
        own = [point for point in points if point.attention == attention]
        axis.plot(
            [float(point.setting) for point in own],
            [point.milliseconds for point in own],
            marker='o',
            color=colour,
            label=attention,
        )
    axis.legend()
