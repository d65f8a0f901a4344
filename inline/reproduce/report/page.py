"""The demo's report: a self-contained HTML file with charts, tables and images."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from inline.apis.drawing import DEFAULT_SCORE_THR
from inline.engine.logs import Curve
from inline.reproduce.report.results import (
    BOX_AP50,
    COMPARED,
    LOSS,
    SCRATCH,
    RunResult,
    compare_starts,
    format_value,
    table_header,
    table_rows,
)
from inline.reproduce.report.samples import DIGITS, SHUFFLE_SEED, Sample
from inline.utils.drawing import BASE_PALETTE, CHART_COLORS

_TEMPLATE = Path(__file__).with_name('template.html')
_HEADLINES = {
    'classification': 'top-1',
    'detection': BOX_AP50.title,
    'detection_scratch': BOX_AP50.title,
    'segmentation': 'mIoU',
    'segmentation_scratch': 'mIoU',
}
# Placeholder for the text colour of the page, which differs between light and dark mode.
_TEXT_COLOR = '#010203'
_MARKERS = ('o', 's')
_MAX_MARKED_POINTS = 40


def write_report(results: Sequence[RunResult], out: Path, settings: Mapping[str, str]) -> None:
    """Write the page to `out`. `settings` are listed in their order at the end of the page."""
    runs = {result.name: result for result in results}
    samples = {result.name: result.samples for result in results}
    page = render_template(
        _TEMPLATE,
        runs=runs,
        headlines=_HEADLINES,
        format_value=format_value,
        comparisons=compare_starts(results),
        header=table_header(results),
        rows=table_rows(results),
        comparison_charts=_comparison_charts(runs),
        other_charts=_other_charts(runs),
        tiles=samples.get('classification', []),
        scenes=_paired_scenes('detection', samples),
        maps=_paired_scenes('segmentation', samples),
        legend={name: '#{:02x}{:02x}{:02x}'.format(*BASE_PALETTE[i]) for i, name in enumerate(DIGITS)},
        score_threshold=DEFAULT_SCORE_THR,
        shuffle_seed=SHUFFLE_SEED,
        settings=settings,
    )
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding='utf-8')


def render_template(path: Path, **values: Any) -> str:
    """Render an HTML template with escaped values. The filter ``base64`` encodes bytes."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters['base64'] = lambda content: base64.b64encode(content).decode()
    return environment.from_string(path.read_text(encoding='utf-8')).render(values)


def draw_chart(
    name: str, y_label: str, series: Mapping[str, Curve], *, from_zero: bool = False
) -> Markup | None:
    """Draw curves over training iterations as inline SVG; return None if all curves are empty.

    Args:
        name: Salt of the ids in the SVG; must be unique on a page.
        y_label: Label of the vertical axis.
        series: Curves by label.
        from_zero: Start the vertical axis at 0.
    """
    if not any(curve.steps for curve in series.values()):
        return None
    text_colors = ('text.color', 'axes.labelcolor', 'axes.edgecolor', 'xtick.color', 'ytick.color')
    style = {
        'font.size': 10,
        'figure.facecolor': 'none',
        'axes.facecolor': 'none',
        'font.family': 'sans-serif',
        'svg.fonttype': 'none',
        # Makes the ids in the SVG deterministic, and different in every chart of the page.
        'svg.hashsalt': name,
        **dict.fromkeys(text_colors, _TEXT_COLOR),
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(5.4, 3.3), layout='constrained')
        axes = figure.add_subplot()
        for (label, curve), color, marker in zip(series.items(), CHART_COLORS, _MARKERS, strict=False):
            if curve.steps:
                (line,) = axes.plot(curve.steps, curve.values, label=label, color=color, linewidth=1.8)
                if len(curve.steps) <= _MAX_MARKED_POINTS:
                    line.set(marker=marker, markersize=4)
        axes.set_xlabel('training iterations')
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter('{x:,.0f}'))
        axes.set_xlim(left=0)
        if from_zero:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.2, color=_TEXT_COLOR)
        axes.spines[['top', 'right']].set_visible(False)
        if len(series) > 1:
            axes.legend(frameon=False)
        buffer = io.StringIO()
        # Metadata would add a date and URLs to the page.
        no_metadata = dict.fromkeys(('Creator', 'Date', 'Format', 'Type'))
        FigureCanvasSVG(figure).print_svg(buffer, metadata=no_metadata)
    text = buffer.getvalue().replace(_TEXT_COLOR, 'currentColor')
    # HTML does not allow the XML prolog.
    return Markup(text[text.index('<svg') :])


def _starts(task: str) -> dict[str, str]:
    """Return the two runs of a task and their labels."""
    return {task: 'fine-tuned', task + SCRATCH: 'from scratch'}


def _comparison_charts(runs: Mapping[str, RunResult]) -> list[dict[str, Any]]:
    charts = []
    for task, (metric, model) in COMPARED.items():
        charts.append(_chart(runs, f'Validation: {metric}', metric, metric, _starts(task)))
        charts.append(_chart(runs, f'Training loss of both {model}s', 'loss', LOSS, _starts(task)))
    return charts


def _other_charts(runs: Mapping[str, RunResult]) -> list[dict[str, Any]]:
    name, task, metric = 'classification', 'Classification', _HEADLINES['classification']
    if name not in runs:
        return []
    title = f'{task}: {metric} on the validation images'
    return [
        _chart(runs, title, f'{metric} (%)', metric, {name: task}),
        _chart(runs, f'{task}: training loss', 'loss', LOSS, {name: task}),
    ]


def _chart(
    runs: Mapping[str, RunResult], title: str, y_label: str, key: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Draw the curves `key` of the runs in `labels`, which maps their names to labels in the legend."""
    series = {label: runs[name].curves[key] for name, label in labels.items() if name in runs}
    last = [f'{label} ends at {curve.values[-1]:.2f}' for label, curve in series.items() if curve.values]
    return {
        'title': title,
        'svg': draw_chart(title, y_label, series, from_zero=key != LOSS),
        'alt': f'{title} over training iterations. {"; ".join(last)}.',
    }


def _paired_scenes(task: str, samples: Mapping[str, list[Sample]]) -> list[Sample]:
    """Combine the samples of both runs of a task: one ground truth and two predictions per scene."""
    scenes: dict[str, Sample] = {}
    for name, label in _starts(task).items():
        for sample in samples.get(name, []):
            scene = scenes.get(sample.image)
            panels = scene.panels if scene else {k: v for k, v in sample.panels.items() if k != 'Prediction'}
            notes = [scene.note] if scene and scene.note else []
            notes += [f'{label}: {sample.note}'] if sample.note else []
            scenes[sample.image] = Sample(
                sample.image, {**panels, label.capitalize(): sample.panels['Prediction']}, '; '.join(notes)
            )
    return list(scenes.values())
