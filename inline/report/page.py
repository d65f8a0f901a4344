"""The report: one HTML file without any outside reference."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from inline.engine.logs import Curve
from inline.report.charts import draw_chart
from inline.report.drawing import PALETTE, css_colour
from inline.report.results import LOSS, RunResult
from inline.report.samples import SCORE_THRESHOLD, SHUFFLE_SEED, Panel, Sample
from inline.report.table import COMPARED, compare_detection, format_value, table_header, table_rows

_TEMPLATE = Path(__file__).with_name('template.html')
_HEADLINES = {
    'classification': 'top-1',
    'detection': COMPARED,
    'detection_scratch': COMPARED,
    'segmentation': 'mIoU',
}
_DETECTORS = {'detection': 'fine-tuned', 'detection_scratch': 'from scratch'}


def write_report(results: Sequence[RunResult], out: Path, settings: Mapping[str, str]) -> None:
    """Write the page to `out`; `settings` are shown in their order."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters['data_uri'] = _data_uri
    template = environment.from_string(_TEMPLATE.read_text(encoding='utf-8'))
    runs = {result.name: result for result in results}
    page = template.render(
        headlines=_headlines(runs),
        comparison=compare_detection(results),
        header=table_header(results),
        rows=table_rows(results),
        detection_charts=_detection_charts(runs),
        other_charts=_other_charts(runs),
        tiles=_samples(runs, 'classification'),
        scenes=_detection_scenes(runs),
        maps=_samples(runs, 'segmentation'),
        legend={str(label): css_colour(label) for label in range(len(PALETTE))},
        score_threshold=SCORE_THRESHOLD,
        shuffle_seed=SHUFFLE_SEED,
        settings=settings,
    )
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding='utf-8')


def _headlines(runs: Mapping[str, RunResult]) -> list[dict[str, str]]:
    return [
        {
            'run': name,
            'title': runs[name].title,
            'metric': metric,
            'value': format_value(runs[name].metrics[metric]),
        }
        for name, metric in _HEADLINES.items()
        if name in runs
    ]


def _detection_charts(runs: Mapping[str, RunResult]) -> list[dict[str, Any]]:
    accuracy, loss = (
        {label: runs[name].curves[key] for name, label in _DETECTORS.items() if name in runs}
        for key in (COMPARED, LOSS)
    )
    return [
        _chart('Box AP50 on the validation scenes', 'box AP50', accuracy, from_zero=True),
        _chart('Training loss of both detectors', 'loss', loss),
    ]


def _other_charts(runs: Mapping[str, RunResult]) -> list[dict[str, Any]]:
    charts = []
    for name, task in (('classification', 'Classification'), ('segmentation', 'Segmentation')):
        if name in runs:
            metric, curves = _HEADLINES[name], runs[name].curves
            title = f'{task}: {metric} on the validation images'
            charts.append(_chart(title, f'{metric} (%)', {task: curves[metric]}, from_zero=True))
            charts.append(_chart(f'{task}: training loss', 'loss', {task: curves[LOSS]}))
    return charts


def _chart(
    title: str, y_label: str, series: Mapping[str, Curve], *, from_zero: bool = False
) -> dict[str, Markup | str | None]:
    last = [f'{label} ends at {curve.values[-1]:.2f}' for label, curve in series.items() if curve.values]
    return {
        'title': title,
        'svg': draw_chart(title, y_label, series, from_zero=from_zero),
        'alt': f'{title} over training iterations. {"; ".join(last)}.',
    }


def _samples(runs: Mapping[str, RunResult], name: str) -> list[Sample]:
    return runs[name].samples if name in runs else []


def _detection_scenes(runs: Mapping[str, RunResult]) -> list[Sample]:
    """Both detectors' pictures of a scene side by side; one that a run did not make is left out."""
    scenes: dict[str, dict[str, Panel]] = {}
    for name, label in _DETECTORS.items():
        for sample in _samples(runs, name):
            panels = scenes.setdefault(sample.image, {'Ground truth': sample.panels['Ground truth']})
            panels[label.capitalize()] = sample.panels['Prediction']
    return [Sample(image, panels) for image, panels in scenes.items()]


def _data_uri(jpeg: bytes) -> str:
    return f'data:image/jpeg;base64,{base64.b64encode(jpeg).decode("ascii")}'
