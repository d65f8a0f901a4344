from pathlib import Path
from typing import Any

import pytest

from inline.analysis.probe_runs import Run, draw, perform, plan_runs, summarise, table_rows
from inline.analysis.probes import Score
from inline.errors import UserError


def test_runs_are_planned_for_every_task_mixer_and_seed_once() -> None:
    runs = plan_runs(['length'], ['InLine', 'Softmax', 'InLine'], seeds=2, steps=5)
    assert runs == [Run('length', mixer, seed, 5) for seed in (0, 1) for mixer in ('InLine', 'Softmax')]


@pytest.mark.parametrize(
    ('wrong', 'told'),
    [
        ({'tasks': ['width']}, "unknown task 'width': choose one of length, neighbour"),
        ({'mixers': ['Softmax', 'InLin']}, "unknown mixer 'InLin': choose one of InLine, "),
        ({'seeds': 0}, 'seeds 0: must be at least 1'),
        ({'steps': -1}, 'steps -1: must be at least 1'),
    ],
)
def test_what_cannot_be_planned_is_told(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        plan_runs(**{'tasks': ['length'], 'mixers': ['InLine'], 'seeds': 1, 'steps': 1, **wrong})


def test_some_process_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='workers 0: must be at least 1'):
        perform(plan_runs(['length'], ['InLine'], 1, 1), tmp_path / 'runs.csv', workers=0)


def test_the_table_has_means_and_deviations_beside_chance_and_best() -> None:
    scores = {
        Run('length', 'InLine', seed, 5): Score(value, 0.25, 1.0)
        for seed, value in enumerate((0.9, 1.0, 0.8))
    } | {Run('neighbour', 'InLine', 0, 5): Score(0.5, 8 / 63, 1.0)}
    assert summarise(scores)['InLine', 'length'].spread == pytest.approx(10)
    assert table_rows(scores, ['length', 'neighbour'], ['InLine']) == [
        ['mixer', 'length (%)', 'neighbour (%)'],
        ['chance', '25.0', '12.7'],
        ['best possible', '100.0', '100.0'],
        ['InLine', '90.0 ± 10.0', '50.0'],
    ]


def test_one_task_and_one_mixer_can_be_drawn(tmp_path: Path) -> None:
    draw({Run('length', 'Softmax', 0, 5): Score(0.5, 0.25, 1.0)}, ['length'], ['Softmax'], tmp_path / 'a.png')
    assert (tmp_path / 'a.png').read_bytes().startswith(b'\x89PNG')


def test_a_file_of_other_columns_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / 'runs.csv'
    path.write_text('task,accuracy\nlength,1\n')
    with pytest.raises(UserError, match='other columns'):
        perform(plan_runs(['length'], ['InLine'], 1, 1), path, workers=1)
    assert path.read_text() == 'task,accuracy\nlength,1\n'
