"""What a run left on disk: the scalars that MMEngine logged, and the metrics of its test."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """Values over training iterations."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


def read_scalars(run_dir: Path) -> list[Record]:
    """Training and validation lines of a run in the order of its steps, sessions merged.

    A resumed session replaces all that an earlier one logged from the step on at which it took over. If it
    began with a validation that was missed, the training up to that step is still the earlier one's.
    """
    records: list[Record] = []
    for path in sorted(run_dir.glob('*/vis_data/scalars.json')):
        session = list(_parse_lines(path.read_text().splitlines()))
        if session:
            start = min(record['step'] for record in session)
            trained = min((record['step'] for record in session if 'loss' in record), default=start + 1)
            kept = [record for record in records if record['step'] < (trained if 'loss' in record else start)]
            records = kept + session
    return records


def read_test_metrics(test_dir: Path) -> Record:
    """Metrics of the newest finished test in its work directory, empty if there is none."""
    for path in sorted(test_dir.glob('*/*.json'), reverse=True):
        if path.stem == path.parent.name:
            for metrics in _parse([path.read_text()]):
                return metrics
    return {}


def curve(records: Iterable[Record], key: str, scale: float = 1.0) -> Curve:
    """The values logged under `key`, times `scale`; what could not be measured is left out."""
    points = [(record['step'], scaled(record, key, scale)) for record in records]
    known = [(step, value) for step, value in points if value is not None]
    return Curve(tuple(step for step, _ in known), tuple(value for _, value in known))


def scaled(record: Record, key: str, scale: float) -> float | None:
    """A metric times `scale`; None if it is missing, not finite, or -1, COCO's word for no objects."""
    value = record.get(key)
    if value is None or not math.isfinite(value) or value == -1:
        return None
    return float(value) * scale


def training_records(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if 'loss' in record]


def training_minutes(records: Iterable[Record]) -> float | None:
    """Minutes spent in training iterations: no validation, no start-up, no work lost to an interruption."""
    seconds, last_step = 0.0, 0
    for record in training_records(records):
        seconds += record.get('time', 0.0) * (record['step'] - last_step)
        last_step = record['step']
    return seconds / 60 if last_step else None


def _parse_lines(lines: Iterable[str]) -> Iterable[Record]:
    return (record for record in _parse(lines) if 'step' in record)


def _parse(texts: Iterable[str]) -> Iterable[Record]:
    for text in texts:
        # A killed process leaves its last line cut off.
        try:
            record = json.loads(text)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
