"""The comparison of starting points: its runs, and the table of their results."""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks import finetuning
from benchmarks.finetuning import TASKS, add_line, plan_runs
from inline.reproduce.generated_files import finetuning_rows
from inline.reproduce.measure import last_validation
from inline.reproduce.runs import NO_WEIGHTS, Run
from inline.utils.errors import UserError
from inline.utils.tables import read_csv


@pytest.fixture
def runs(tmp_path: Path) -> dict[tuple[str, int], Run]:
    """The runs of two seeds on one image per class and split."""
    photos = tmp_path / 'photos'
    for split in ('train', 'val'):
        for name in ('cat', 'dog'):
            (photos / split / name).mkdir(parents=True)
            cv2.imwrite(str(photos / split / name / 'a.png'), np.zeros((48, 48, 3), np.uint8))
    (tmp_path / 'digits.pth').write_bytes(b'weights')
    starts = {'scratch': NO_WEIGHTS, 'digits': tmp_path / 'digits.pth', 'packaged': None}
    return plan_runs(TASKS['classification'], photos, starts, 2, tmp_path / 'runs')


def test_runs_differ_in_their_starting_weights_and_seed(runs: dict[tuple[str, int], Run]) -> None:
    assert list(runs) == [(start, seed) for seed in (0, 1) for start in ('scratch', 'digits', 'packaged')]
    assert len({run.inputs().digest for run in runs.values()}) == 6
    commands = {start: ' '.join(runs[start, 1].train_command()) for start, seed in runs if seed}
    assert '--pretrained none' in commands['scratch']
    assert 'digits.pth' in commands['digits']
    assert '--pretrained' not in commands['packaged']
    weights = {start: list(runs[start, 1].inputs().weights) for start in commands}
    assert weights['scratch'] == []
    assert [Path(path).name for path in weights['digits']] == ['digits.pth']
    assert weights['packaged'] == ['inline_pvt_micro']
    assert all('randomness.seed=1' in command for command in commands.values())


def test_only_the_start_from_digits_needs_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Run] = []
    monkeypatch.setattr(finetuning, 'run_all', lambda runs, **_: finished.extend(runs))
    command = ['finetuning.py', 'detection', 'boxes', '--seeds', '2', '--work-dir', str(tmp_path)]
    monkeypatch.setattr(sys, 'argv', [*command, '--starts', 'packaged'])
    finetuning.main()
    assert [run.name for run in finished] == ['packaged_seed0', 'packaged_seed1']
    monkeypatch.setattr(sys, 'argv', command)
    with pytest.raises(UserError, match='--digits: the start from digits needs a checkpoint'):
        finetuning.main()


def test_the_last_validation_is_recorded(runs: dict[tuple[str, int], Run]) -> None:
    run = runs['scratch', 0]
    run.begin()
    with pytest.raises(UserError, match='scratch_seed0 logged no top-1'):
        last_validation(run, TASKS['classification'].metric)
    log = run.folder / '20260101_000000' / 'vis_data' / 'scalars.json'
    log.parent.mkdir(parents=True)
    lines = [
        {'loss': 1.0, 'time': 6.0, 'iter': 10, 'step': 10},
        {'accuracy/top1': 60.0, 'step': 1},
        {'accuracy/top1': 50.0, 'step': 2},
    ]
    log.write_text('\n'.join(map(json.dumps, lines)))
    line = last_validation(run, TASKS['classification'].metric)
    assert (line['metric'], line['value'], line['minutes']) == ('top-1', '50.00', '1.00')
    assert line['digest'] == run.provenance()['digest']


def test_the_table_has_means_over_seeds(tmp_path: Path) -> None:
    path = tmp_path / 'finetuning.csv'
    values = {('scratch', '0'): '40.00', ('packaged', '0'): '70.00', ('scratch', '1'): '42.00'}
    for (start, seed), value in values.items():
        key = {'dataset': 'photos', 'start': start, 'seed': seed}
        add_line(path, {**key, 'metric': 'top-1', 'value': '1.00', 'minutes': '1'})
        add_line(path, {**key, 'metric': 'top-1', 'value': value, 'minutes': '1'})
    assert [line['value'] for line in read_csv(path)] == list(values.values())
    assert finetuning_rows(path) == [
        ['dataset', 'metric', 'scratch', 'packaged'],
        ['photos', 'top-1', '41.0 ± 1.4', '70.0'],
    ]
