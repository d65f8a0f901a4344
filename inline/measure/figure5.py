"""The paper's Figure 5: InLine against softmax in accuracy, window size and resolution.

(a) Accuracy against runtime, the accuracies being the published ones; (b) Swin-T with windows of growing
size; (c) DeiT-T on images of growing size. Softmax is torch's fused attention.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import nn

from inline.measure.models import Settings, inference
from inline.measure.timing import interleave
from inline.models import InLineDeiT, InLinePVT, InLineSwin

WINDOWS = (7, 14, 28, 56)
RESOLUTIONS = (224, 384, 512, 640, 768, 1024)
# Sizes by the letter that the paper gives them.
ARCHS = {'T': 'tiny', 'S': 'small', 'M': 'medium', 'B': 'base', 'L': 'large'}
FAMILIES: dict[str, type[InLinePVT | InLineSwin]] = {'PVT': InLinePVT, 'Swin': InLineSwin}
COLOURS = {'InLine': '#2f7de1', 'softmax': '#e2711d'}
SOFTMAX = {'type': 'Softmax'}
# DeiT-T as it was published: heads of 64 channels, where InLine's have 32.
SOFTMAX_DEIT = {'embed_dims': 192, 'depth': 12, 'num_heads': 3}


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
    for family, cls in FAMILIES.items():
        for letter, arch in ARCHS.items():
            name = f'{family}-{letter}'
            if published.get(name) and published.get(f'InLine-{name}'):
                yield [
                    Subject(family, 'InLine', name, cls(arch), 224, float(published[f'InLine-{name}'])),
                    Subject(family, 'softmax', name, cls(arch, mixers=SOFTMAX), 224, float(published[name])),
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
        softmax = InLineDeiT(SOFTMAX_DEIT, img_size=size, mixers=SOFTMAX)
        yield [
            Subject('DeiT-T', 'InLine', str(size), InLineDeiT('tiny', img_size=size), size),
            Subject('DeiT-T', 'softmax', str(size), softmax, size),
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
        axes = figure.subplots(1, 3)
        for panel, axis, title, x_label, y_label in zip(
            'abc',
            axes,
            ('Accuracy against runtime', 'Swin-T, window size', 'DeiT-T, resolution'),
            ('ms an image', 'side of the window', 'side of the image'),
            ('published top-1 (%)', 'ms an image', 'ms an image'),
            strict=True,
        ):
            own = [point for point in points if point.panel == panel]
            for family, attention in sorted({(point.family, point.attention) for point in own}):
                line = [point for point in own if (point.family, point.attention) == (family, attention)]
                times = [point.milliseconds for point in line]
                xs, ys = (
                    (times, [point.top1 for point in line])
                    if panel == 'a'
                    else ([float(point.setting) for point in line], times)
                )
                marker = 's' if family == 'Swin' else 'o'
                label = f'{family}, {attention}' if panel == 'a' else attention
                axis.plot(xs, ys, marker=marker, color=COLOURS[attention], label=label)
            axis.set_title(f'({panel}) {title}')
            axis.set_xlabel(x_label)
            axis.set_ylabel(y_label)
            axis.legend()
        figure.supxlabel(points[0].conditions, fontsize=8, color='#555555')
        FigureCanvasAgg(figure)
        figure.savefig(path, dpi=160)
