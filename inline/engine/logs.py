"""Readers of a run's log files: training scalars and test metrics."""

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
    """Read the training and validation records of a run, in the order of their steps, over all sessions.

    The records of a resumed session replace those of earlier sessions from its first step on. If it started
    with a validation that had been interrupted, the training records up to that step are kept.
    """
    records: list[Record] = []
    for path in sorted(run_dir.glob('*/vis_data/scalars.json')):
        session = [record for record in _parse(path.read_text().splitlines()) if 'step' in record]
        if session:
            start = min(record['step'] for record in session)
            trained = min((record['step'] for record in session if 'loss' in record), default=start + 1)
            kept = [record for record in records if record['step'] < (trained if 'loss' in record else start)]
            records = kept + session
    return records


def read_test_metrics(test_dir: Path) -> Record:
    """Read the metrics of the newest finished test in a work directory; return {} if there is none."""
    for path in sorted(test_dir.glob('*/*.json'), reverse=True):
        if path.stem == path.parent.name:
            for metrics in _parse([path.read_text()]):
                return metrics
    return {}


def curve(records: Iterable[Record], key: str, scale: float = 1.0) -> Curve:
    """Return the values logged as `key`, times `scale`, without those that are missing or not finite."""
    points = [(record['step'], scaled(record, key, scale)) for record in records]
    known = [(step, value) for step, value in points if value is not None]
    return Curve(tuple(step for step, _ in known), tuple(value for _, value in known))


def scaled(record: Record, key: str, scale: float) -> float | None:
    """Return a metric times `scale`, or None if it is missing, not finite, or -1 (COCO: no objects)."""
    value = record.get(key)
    if value is None or not math.isfinite(value) or value == -1:
        return None
    return float(value) * scale


def training_records(records: Iterable[Record]) -> list[Record]:
    """Return the records of training steps."""
    return [record for record in records if 'loss' in record]


def training_minutes(records: Iterable[Record]) -> float | None:
    """Return the minutes of training, without validation, start-up and steps lost to an interruption."""
    seconds, last_step = 0.0, 0
    for record in training_records(records):
        seconds += record.get('time', 0.0) * (record['step'] - last_step)
        last_step = record['step']
    return seconds / 60 if last_step else None


def _parse(texts: Iterable[str]) -> Iterable[Record]:
    for text in texts:
        # The last line of a killed process may be truncated.
        try:
            record = json.loads(text)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
