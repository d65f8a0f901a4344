"""Results of the demo's runs, read from their work directories, and the table of results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inline.engine.logs import (
    Curve,
    curve,
    read_scalars,
    read_test_metrics,
    scaled,
    training_minutes,
    training_records,
)
from inline.reproduce.provenance import PROVENANCE
from inline.reproduce.report.samples import (
    Sample,
    classification_samples,
    detection_samples,
    load_predictions,
    segmentation_samples,
)
from inline.reproduce.tables import BOX_AP, MASK_AP, MIOU, TOP1, Metric
from inline.utils import tables

LOSS = 'loss'
MISSING = '–'
BOX_AP50 = Metric('box_ap50', 'box AP50', 'coco/bbox_mAP_50', 100)
# The metric by which fine-tuning and training from scratch are compared, and the name of the model.
COMPARED = {'detection': (BOX_AP50.title, 'detector'), 'segmentation': (MIOU.title, 'segmentor')}
SCRATCH = '_scratch'
# Values have one decimal in the table: a smaller difference is not visible.
_MIN_DIFFERENCE = 0.05
_NUM_TEXT_COLUMNS = 2


@dataclass(frozen=True)
class RunResult:
    """Results of one run of the demo. Missing values are None or empty.

    Metrics and their curves are from 0 to 100.
    """

    name: str
    title: str
    model: str
    metrics: dict[str, float | None]
    curves: dict[str, Curve]
    iterations: int | None
    minutes: float | None
    samples: list[Sample]


_DETECTION = (
    BOX_AP,
    BOX_AP50,
    MASK_AP,
    Metric('mask_ap50', 'mask AP50', 'coco/segm_mAP_50', 100),
)
_SEGMENTATION = (MIOU, Metric('aacc', 'aAcc', 'aAcc'))
# Name, title, model, metrics, and function that draws sample predictions.
_RUNS = (
    ('classification', 'Classification', 'InLine-PVT', (TOP1,), classification_samples),
    ('detection', 'Detection, fine-tuned', 'Mask R-CNN', _DETECTION, detection_samples),
    ('detection_scratch', 'Detection, from scratch', 'Mask R-CNN', _DETECTION, detection_samples),
    ('segmentation', 'Segmentation, fine-tuned', 'Semantic FPN', _SEGMENTATION, segmentation_samples),
    (
        'segmentation_scratch',
        'Segmentation, from scratch',
        'Semantic FPN',
        _SEGMENTATION,
        segmentation_samples,
    ),
)


def collect_results(demo_dir: Path) -> list[RunResult]:
    """Read the results of all runs of the demo, in the order of the table. Missing runs are empty."""
    results = []
    for name, title, model, metrics, draw_samples in _RUNS:
        run_dir = Path(demo_dir) / name
        records, tested = read_scalars(run_dir), read_test_metrics(run_dir / 'test')
        training = training_records(records)
        curves = {metric.title: curve(records, metric.key, metric.scale) for metric in metrics}
        results.append(
            RunResult(
                name=name,
                title=title,
                model=model,
                metrics={metric.title: scaled(tested, metric.key, metric.scale) for metric in metrics},
                curves={LOSS: curve(training, 'loss'), **curves},
                iterations=training[-1]['step'] if training else None,
                minutes=training_minutes(records),
                samples=draw_samples(load_predictions(run_dir / 'test' / 'predictions.pkl')),
            )
        )
    return results


def format_table(results: Sequence[RunResult]) -> str:
    """Return a plain-text table with dashes for missing values and blanks for metrics of other tasks."""
    rows = [table_header(results), *table_rows(results)]
    rows.insert(1, ['-' * max(map(len, column)) for column in zip(*rows, strict=True)])
    return '\n'.join(tables.align(rows, right=range(_NUM_TEXT_COLUMNS, len(rows[0]))))


def write_csv(results: Sequence[RunResult], provenance: Mapping[str, Mapping[str, str]], out: Path) -> None:
    """Write the table as a CSV file, with the provenance columns of each run by its name."""
    header = table_header(results)
    lines = [
        {**dict(zip(header, row, strict=True)), **provenance.get(result.name, {})}
        for result, row in zip(results, table_rows(results), strict=True)
    ]
    tables.write_csv(out, [*header, *PROVENANCE], lines)


def table_header(results: Sequence[RunResult]) -> list[str]:
    return ['task', 'model', *_metric_names(results), 'iterations', 'minutes']


def table_rows(results: Sequence[RunResult]) -> list[list[str]]:
    names = _metric_names(results)
    return [
        [
            result.title,
            result.model,
            *(format_value(result.metrics[name]) if name in result.metrics else '' for name in names),
            _format_count(result.iterations),
            format_value(result.minutes),
        ]
        for result in results
    ]


def compare_starts(results: Sequence[RunResult]) -> list[str]:
    """Compare fine-tuning with training from scratch, in one sentence per task."""
    runs = {run.name: run for run in results}
    return [
        _compare(task, runs.get(task), runs.get(task + SCRATCH), metric, model)
        for task, (metric, model) in COMPARED.items()
    ]


def _compare(task: str, tuned: RunResult | None, scratch: RunResult | None, metric: str, model: str) -> str:
    values = [run.metrics[metric] if run else None for run in (tuned, scratch)]
    if tuned is None or scratch is None or values[0] is None or values[1] is None:
        return f'Starting points of {task} cannot be compared: a test result is missing.'
    # Difference of the rounded values, so that the sentence agrees with the table.
    difference = round(values[0], 1) - round(values[1], 1)
    if abs(difference) < _MIN_DIFFERENCE:
        verdict = 'the same as'
    else:
        verdict = f'{abs(difference):.1f} points {"above" if difference > 0 else "below"}'
    lengths = [_format_count(run.iterations) for run in (tuned, scratch)]
    if lengths[0] == lengths[1]:
        budget = f'After {lengths[0]} iterations each'
    else:
        budget = f'After {lengths[0]} and {lengths[1]} iterations (different training lengths)'
    return (
        f'{budget}, the {model} fine-tuned from the packaged weights reaches {metric} {values[0]:.1f}, '
        f'{verdict} the {values[1]:.1f} of the same {model} trained from scratch.'
    )


def format_value(value: float | None) -> str:
    return MISSING if value is None else f'{value:.1f}'


def _format_count(value: int | None) -> str:
    return MISSING if value is None else f'{value:,}'


def _metric_names(results: Sequence[RunResult]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in result.metrics))
