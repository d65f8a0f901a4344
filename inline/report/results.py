"""Collect what the runs of the demo left on disk."""

from collections.abc import Callable, Sequence
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
from inline.report.samples import (
    Prediction,
    Sample,
    classification_samples,
    detection_samples,
    load_predictions,
    segmentation_samples,
)

LOSS = 'loss'


@dataclass(frozen=True)
class RunResult:
    """A run of the demo: what is missing is None or empty. Metrics and their curves are from 0 to 100."""

    name: str
    title: str
    model: str
    metrics: dict[str, float | None]
    curves: dict[str, Curve]
    iterations: int | None
    minutes: float | None
    samples: list[Sample]


@dataclass(frozen=True)
class _Task:
    """Metrics by what the page calls them: the evaluator's key, and the factor to 0..100."""

    metrics: dict[str, tuple[str, float]]
    draw: Callable[[Sequence[Prediction]], list[Sample]]


_CLASSIFICATION = _Task({'top-1': ('accuracy/top1', 1)}, classification_samples)
_DETECTION = _Task(
    {
        'box AP': ('coco/bbox_mAP', 100),
        'box AP50': ('coco/bbox_mAP_50', 100),
        'mask AP': ('coco/segm_mAP', 100),
        'mask AP50': ('coco/segm_mAP_50', 100),
    },
    detection_samples,
)
_SEGMENTATION = _Task({'mIoU': ('mIoU', 1), 'aAcc': ('aAcc', 1)}, segmentation_samples)

_RUNS = (
    ('classification', 'Classification', 'InLine-PVT', _CLASSIFICATION),
    ('detection', 'Detection, fine-tuned', 'Mask R-CNN', _DETECTION),
    ('detection_scratch', 'Detection, from scratch', 'Mask R-CNN', _DETECTION),
    ('segmentation', 'Segmentation, fine-tuned', 'Semantic FPN', _SEGMENTATION),
)


def collect_results(demo_dir: Path) -> list[RunResult]:
    """All runs of the demo in the order of the table, those not done as well."""
    return [
        _collect_run(Path(demo_dir) / name, title=title, model=model, task=task)
        for name, title, model, task in _RUNS
    ]


def _collect_run(run_dir: Path, *, title: str, model: str, task: _Task) -> RunResult:
    records = read_scalars(run_dir)
    training = training_records(records)
    tested = read_test_metrics(run_dir / 'test')
    curves = {LOSS: curve(training, 'loss')}
    curves |= {label: curve(records, key, scale) for label, (key, scale) in task.metrics.items()}
    return RunResult(
        name=run_dir.name,
        title=title,
        model=model,
        metrics={label: scaled(tested, key, scale) for label, (key, scale) in task.metrics.items()},
        curves=curves,
        iterations=training[-1]['step'] if training else None,
        minutes=training_minutes(records),
        samples=task.draw(load_predictions(run_dir / 'test' / 'predictions.pkl')),
    )
