"""The results in words and rows, for the terminal and for the page."""

import csv
from collections.abc import Sequence
from pathlib import Path

from inline.columns import align
from inline.report.results import RunResult

MISSING = '–'
COMPARED = 'box AP50'
# The numbers are read to one decimal, so a smaller difference is none.
_SMALLEST_DIFFERENCE = 0.05
_NUM_TEXT_COLUMNS = 2
_NO_COMPARISON = 'Fine-tuning and training from scratch cannot be compared: a test result is missing.'


def format_table(results: Sequence[RunResult]) -> str:
    """A plain-text table: a dash is a value that is missing, a blank a metric of another task."""
    rows = [table_header(results), *table_rows(results)]
    rows.insert(1, ['-' * max(map(len, column)) for column in zip(*rows, strict=True)])
    return '\n'.join(align(rows, right=range(_NUM_TEXT_COLUMNS, len(rows[0]))))


def write_csv(results: Sequence[RunResult], out: Path) -> None:
    """The table as data."""
    with out.open('w', newline='') as file:
        csv.writer(file, lineterminator='\n').writerows([table_header(results), *table_rows(results)])


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


def compare_detection(results: Sequence[RunResult]) -> str:
    """One sentence on what the pretrained weights brought to detection, whichever way it went."""
    by_name = {result.name: result for result in results}
    tuned, scratch = by_name.get('detection'), by_name.get('detection_scratch')
    if tuned is None or scratch is None:
        return _NO_COMPARISON
    tuned_ap, scratch_ap = tuned.metrics[COMPARED], scratch.metrics[COMPARED]
    if tuned_ap is None or scratch_ap is None:
        return _NO_COMPARISON
    # Of the rounded values, so that the sentence agrees with the table beside it.
    difference = round(tuned_ap, 1) - round(scratch_ap, 1)
    if abs(difference) < _SMALLEST_DIFFERENCE:
        verdict = 'the same as'
    else:
        verdict = f'{abs(difference):.1f} points {"above" if difference > 0 else "below"}'
    if tuned.iterations == scratch.iterations:
        budget = f'After {_format_count(tuned.iterations)} iterations each'
    else:
        counts = f'{_format_count(tuned.iterations)} and {_format_count(scratch.iterations)}'
        budget = f'After {counts} iterations, so not on equal terms'
    return (
        f'{budget}, the detector fine-tuned from the classifier’s weights reaches a box AP50 of '
        f'{tuned_ap:.1f}, {verdict} the {scratch_ap:.1f} of the same detector trained from scratch.'
    )


def format_value(value: float | None) -> str:
    return MISSING if value is None else f'{value:.1f}'


def _format_count(value: int | None) -> str:
    return MISSING if value is None else f'{value:,}'


def _metric_names(results: Sequence[RunResult]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in result.metrics))
