"""The paper's Figure 5: InLine against softmax by accuracy, window size and resolution.

(a) Published accuracy against measured runtime; (b) Swin-T by window size; (c) DeiT-T by image size. The
softmax models have their published architectures and use torch's fused attention. The figure overlays the
curves of the paper: times are relative to softmax in the smallest setting, to compare two machines.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from torch import nn

from inline.benchmark.timing import BenchmarkSettings, interleave, make_inference
from inline.models import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin
from inline.models.backbones import deit, pvt
from inline.utils.drawing import CHART_COLORS
from inline.utils.errors import UserError
from inline.utils.tables import read_csv, write_csv

WINDOWS = (7, 14, 28, 56)
RESOLUTIONS = (224, 384, 512, 640, 768, 1024)
# Sizes by their letter in the paper.
ARCHS = {'T': 'tiny', 'S': 'small', 'M': 'medium', 'B': 'base', 'L': 'large'}
COLORS = dict(zip(('InLine', 'softmax'), CHART_COLORS, strict=False))
# Line styles of the points measured here and of the paper's.
OURS: dict[str, Any] = {'linestyle': '-'}
THEIRS: dict[str, Any] = {'linestyle': '--', 'markerfacecolor': 'white', 'linewidth': 1, 'alpha': 0.8}


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


def read_points(path: Path) -> list[Point]:
    """Read points that :func:`write_points` wrote."""
    names = {field.name for field in fields(Point)}
    lines = read_csv(path)
    if not lines or names != set(lines[0]):
        raise UserError(f'{str(path)!r} has no points of Figure 5: expected the columns {", ".join(names)}')
    return [
        Point(
            **{
                **line,
                'milliseconds': float(line['milliseconds']),
                'spread': float(line['spread']),
                'top1': float(line['top1']) if line['top1'] else None,
            }  # type: ignore[arg-type]
        )
        for line in lines
    ]


def read_paper_points(path: Path) -> list[Point]:
    """Read the points of the paper's figure, in milliseconds or images per second, by the names used here."""
    points = []
    for line in read_csv(path):
        model = line['model'].removeprefix('InLine-')
        # "window 7" and "resolution 224"; panel (a) has one resolution.
        setting = model if line['panel'] == 'a' else line['setting'].split()[-1]
        points.append(
            Point(
                panel=line['panel'],
                family=model.split('-')[0] if line['panel'] == 'a' else model,
                attention='softmax' if model == line['model'] else 'InLine',
                setting=setting,
                milliseconds=float(line['milliseconds'] or 1e3 / float(line['fps'] or 'nan')),
                spread=0.0,
                top1=float(line['top1']) if line['top1'] else None,
                conditions=line['source'],
            )
        )
    return points


def relative_times(points: Sequence[Point], paper: Sequence[Point]) -> tuple[list[Point], list[Point], str]:
    """Divide the times of a panel by that of softmax in the smallest setting that both machines measured.

    Returns:
        The points of this machine, those of the paper, and the name of the setting.
    """
    softmax = [
        {p.setting: p.milliseconds for p in side if p.attention == 'softmax'} for side in (points, paper)
    ]
    common = [setting for setting in softmax[0] if setting in softmax[1]]
    if not common:
        raise UserError('the measured points and those of the paper have no setting of softmax in common')
    ours, theirs = (
        [replace(p, milliseconds=p.milliseconds / times[common[0]]) for p in side]
        for side, times in zip((points, paper), softmax, strict=True)
    )
    return ours, theirs, common[0]


def draw_figure5(points: Sequence[Point], paper: Sequence[Point], path: Path) -> None:
    """Draw the three panels side by side: solid here, dashed in the paper, with the conditions below."""
    with mpl.rc_context({'axes.spines.top': False, 'axes.spines.right': False, 'legend.frameon': False}):
        figure = Figure(figsize=(14, 4.6), layout='constrained')
        titles = {
            'a': ('(a) Accuracy against runtime', '{}', ''),
            'b': ('(b) Swin-T, window size', 'window {}', 'window side (tokens)'),
            'c': ('(c) DeiT-T, resolution', '{} pixels', 'image side (pixels)'),
        }
        for axes, (panel, (title, setting, label)) in zip(figure.subplots(1, 3), titles.items(), strict=True):
            sides = [[point for point in side if point.panel == panel] for side in (points, paper)]
            ours, theirs, reference = relative_times(*sides)
            time = f'time relative to softmax, {setting.format(reference)}'
            if not label:
                _draw_accuracies(axes, ours, theirs)
                axes.set(title=title, xlabel=time, ylabel='published top-1 (%)')
            else:
                _draw_times(axes, ours, theirs)
                axes.set(title=title, xlabel=label, ylabel=time)
        conditions = f'here: {points[0].conditions}; paper: read off its figure, another GPU'
        figure.supxlabel(conditions, fontsize=8, color='#555555')
        figure.savefig(path, dpi=160)


def _draw_accuracies(axes: Axes, ours: Sequence[Point], theirs: Sequence[Point]) -> None:
    """Draw one line per family and attention, dotted where a size in between has no point."""
    skipped = set()
    for family, attention in sorted({(point.family, point.attention) for point in ours}):
        for side, style in ((ours, OURS), (theirs, THEIRS)):
            line = [p for p in side if (p.family, p.attention) == (family, attention) and p.top1 is not None]
            name = f'{family}, {attention}' if side is ours else None
            marker = {'marker': FAMILIES[family].marker, 'color': COLORS[attention], **style}
            axes.plot(*_curve(line), label=name, **{**marker, 'linestyle': 'none'})
            for pair in pairwise(line):
                between = skipped_sizes(*pair)
                skipped.update(between if side is ours else [])
                axes.plot(
                    *_curve(pair), **{**marker, **({'linestyle': ':'} if between else {}), 'marker': ''}
                )
    notes = ['hollow: times of the paper']
    notes += [f'dotted: {", ".join(sorted(skipped))} not measured'] if skipped else []
    axes.legend(title='\n'.join(notes), title_fontsize=8, alignment='left', loc='lower right')


def _curve(points: Iterable[Point]) -> tuple[list[float], list[float]]:
    known = [(point.milliseconds, point.top1) for point in points if point.top1 is not None]
    return [time for time, _ in known], [top1 for _, top1 in known]


def skipped_sizes(first: Point, second: Point) -> list[str]:
    """Return the sizes of a family between those of two points, for example Swin-S."""
    sizes = [f'{first.family}-{letter}' for letter in FAMILIES[first.family].sizes]
    return sizes[sizes.index(first.setting) + 1 : sizes.index(second.setting)]


def _draw_times(axes: Axes, ours: Sequence[Point], theirs: Sequence[Point]) -> None:
    for side, style, where in ((ours, OURS, 'here'), (theirs, THEIRS, 'paper')):
        for attention, color in COLORS.items():
            line = [point for point in side if point.attention == attention]
            xs, ys = [float(point.setting) for point in line], [point.milliseconds for point in line]
            axes.plot(xs, ys, marker='o', color=color, label=f'{attention}, {where}', **style)
    settings = dict.fromkeys(int(point.setting) for point in [*ours, *theirs])
    axes.set_xticks(sorted(settings), [str(setting) for setting in sorted(settings)])
    axes.set_yscale('log')
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter('{x:g}')
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend()
