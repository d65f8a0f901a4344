"""Costs of the rows of an ablation, and runs that are recorded as they finish."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inline.reproduce import ablation_runs
from inline.reproduce.ablation_runs import MeasuredRuns, Outcome, measure_costs, read_outcomes
from inline.reproduce.ablations import ABLATIONS, plan_runs
from inline.reproduce.provenance import PROVENANCE
from inline.reproduce.runs import Run


def test_costs_tell_rows_with_a_convolution_apart() -> None:
    ablation = ABLATIONS['baselines']
    rows = ('softmax', 'flatten', 'inline')
    costs = measure_costs({row: ablation.config('digits', row) for row in rows})
    assert [(cost.row, cost.convolution) for cost in costs] == [
        ('softmax', 'no'),
        ('flatten', 'yes'),
        ('inline', 'predicted'),
    ]
    assert all(cost.milliseconds > 0 for cost in costs)
    softmax, _, inline = costs
    # The local residual has parameters; softmax over 256 tokens has more FLOPs.
    assert 0.2 < softmax.params < inline.params < 0.3
    assert softmax.flops > inline.flops > 0.005


def make_run(tmp_path: Path, row: str) -> tuple[tuple[str, int], Run]:
    ((key, run),) = plan_runs(ABLATIONS['components'], 'digits', 1, tmp_path, rows=[row]).items()
    run.begin()
    return key, run


def test_runs_are_recorded_as_they_finish_and_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []

    def fake(row: str, seed: int, run: Run) -> Outcome:
        measured.append((row, seed))
        return Outcome(row, seed, '2 steps', 50.0, 1.0, {**dict.fromkeys(PROVENANCE, ''), **run.provenance()})

    monkeypatch.setattr(ablation_runs, 'measure_run', fake)
    runs = dict(make_run(tmp_path, row) for row in ('softmax', 'inline'))
    keys = {run.folder: key for key, run in runs.items()}
    own, shared = tmp_path / 'results.csv', tmp_path / 'measured' / 'ablation.csv'
    shared.parent.mkdir()
    recorder = MeasuredRuns(keys, own, shared)
    recorder.record(runs['inline', 0])
    # The files are complete before the second run has finished.
    assert [outcome.row for outcome in read_outcomes(shared)] == ['inline']
    recorder.record(runs['softmax', 0])
    assert [outcome.row for outcome in read_outcomes(own)] == ['softmax', 'inline']
    assert measured == [('inline', 0), ('softmax', 0)]

    # Without the work directory, the result is taken from the files as long as the inputs are the same.
    shutil.rmtree(runs['softmax', 0].folder)
    again = MeasuredRuns({runs['softmax', 0].folder: ('softmax', 0)}, own, shared)
    assert again.recall(runs['softmax', 0])
    # The file of the command has its own runs only, the shared one keeps the others.
    assert [outcome.row for outcome in read_outcomes(own)] == ['softmax']
    assert [outcome.row for outcome in read_outcomes(shared)] == ['inline', 'softmax']
    changed = replace(runs['softmax', 0], options=('train_cfg.max_iters=3',))
    assert not again.recall(changed)
    assert len(measured) == 2
