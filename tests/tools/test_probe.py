"""tools/probe.py: results, continuing an interrupted run, and error messages."""

import csv
from pathlib import Path

import pytest

from inline.utils.tables import read_csv
from tests.conftest import run_tool

QUICK = [
    'tools/probe.py',
    '--mixer',
    'InLine',
    'Linear-relu',
    '--seeds',
    '1',
    '--steps',
    '2',
    '--workers',
    '1',
]


def write(path: Path, lines: list[dict[str, str]]) -> None:
    with path.open('w', newline='') as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator='\n')
        writer.writeheader()
        writer.writerows(lines)


@pytest.mark.slow
def test_interrupted_run_continues(tmp_path: Path) -> None:
    runs = tmp_path / 'runs.csv'
    done = run_tool(*QUICK, '--out', tmp_path)
    assert done.returncode == 0, done.stderr
    assert '4/4' in done.stderr
    lines = sorted(read_csv(runs), key=lambda line: (line['task'], line['mixer']))
    assert [(line['task'], line['mixer'], line['seed']) for line in lines] == [
        (task, mixer, '0') for task in ('length', 'neighbour') for mixer in ('InLine', 'Linear-relu')
    ]
    table = read_csv(tmp_path / 'table.csv')
    assert [row['mixer'] for row in table] == ['chance', 'best possible', 'InLine', 'Linear-relu']
    assert all(row['length (%)'] in done.stdout for row in table)
    assert (tmp_path / 'probes.png').read_bytes().startswith(b'\x89PNG')

    # One run is missing, one has other settings, one has an accuracy that training would not reach.
    missing, changed, marked = lines[0], lines[1], lines[2]
    write(runs, [{**changed, 'settings': '{}'}, {**marked, 'accuracy': '0.9999'}, *lines[3:]])
    again = run_tool(*QUICK, '--out', tmp_path)
    assert again.returncode == 0, again.stderr
    assert '2/2' in again.stderr
    kept = read_csv(runs)
    assert len(kept) == 5
    assert missing in kept
    assert changed in kept
    assert {**changed, 'settings': '{}'} in kept
    assert {**marked, 'accuracy': '0.9999'} in kept


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--mixer', 'InLin'], "unknown mixer 'InLin': choose one of InLine, "),
        (['--task', 'width'], "unknown task 'width': choose one of length, neighbour"),
        (['--seeds', '0'], 'seeds 0: must be at least 1'),
        (['--out', 'README.md'], "--out 'README.md': cannot create this folder"),
    ],
)
def test_user_error_is_reported_in_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    done = run_tool('tools/probe.py', '--out', tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr.startswith('error: ')
    assert message in done.stderr
    assert done.stderr.count('\n') == 1
    assert not list(tmp_path.iterdir())
