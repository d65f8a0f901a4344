"""Planning, caching and summarising probe runs."""

from pathlib import Path
from typing import Any

import pytest

from inline.analysis.probe_runs import ProbeRun, draw_probes, plan_runs, run_probes, summarize, table_rows
from inline.analysis.probes import Score
from inline.utils.errors import UserError


def test_one_run_per_task_mixer_and_seed() -> None:
    runs = plan_runs(['length'], ['InLine', 'Softmax', 'InLine'], seeds=2, steps=5)
    assert runs == [ProbeRun('length', mixer, seed, 5) for seed in (0, 1) for mixer in ('InLine', 'Softmax')]


@pytest.mark.parametrize(
    ('wrong', 'message'),
    [
        ({'tasks': ['width']}, "unknown task 'width': choose one of length, neighbour"),
        ({'mixers': ['Softmax', 'InLin']}, "unknown mixer 'InLin': choose one of InLine, "),
        ({'seeds': 0}, 'seeds 0: must be at least 1'),
        ({'steps': -1}, 'steps -1: must be at least 1'),
    ],
)
def test_invalid_plans_are_rejected(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_runs(**{'tasks': ['length'], 'mixers': ['InLine'], 'seeds': 1, 'steps': 1, **wrong})


def test_zero_workers_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='workers 0: must be at least 1'):
        run_probes(plan_runs(['length'], ['InLine'], 1, 1), tmp_path / 'runs.csv', workers=0)


def test_table_contains_mean_deviation_chance_and_best() -> None:
    scores = {
        ProbeRun('length', 'InLine', seed, 5): Score(value, 0.25, 1.0)
        for seed, value in enumerate((0.9, 1.0, 0.8))
    } | {ProbeRun('neighbour', 'InLine', 0, 5): Score(0.5, 8 / 63, 1.0)}
    assert summarize(scores)['InLine', 'length'] == pytest.approx((90, 10))
    assert table_rows(summarize(scores), ['length', 'neighbour'], ['InLine']) == [
        ['mixer', 'length (%)', 'neighbour (%)'],
        ['chance', '25.0', '12.7'],
        ['best possible', '100.0', '100.0'],
        ['InLine', '90.0 ± 10.0', '50.0'],
    ]


def test_figure_of_one_task_and_one_mixer(tmp_path: Path) -> None:
    draw_probes({('Softmax', 'length'): (50.0, None)}, ['length'], ['Softmax'], tmp_path / 'a.png')
    assert (tmp_path / 'a.png').read_bytes().startswith(b'\x89PNG')


def test_file_with_other_columns_is_rejected_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / 'runs.csv'
    path.write_text('task,accuracy\nlength,1\n')
    with pytest.raises(UserError, match='unexpected columns'):
        run_probes(plan_runs(['length'], ['InLine'], 1, 1), path, workers=1)
    assert path.read_text() == 'task,accuracy\nlength,1\n'
