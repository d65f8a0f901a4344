"""Deployment benchmark: the gate before timing, rows as they finish, failures as notes, table and figure."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inline.benchmark import runtimes
from inline.benchmark.runtimes import (
    COLUMNS,
    TOLERANCES,
    Job,
    RuntimeSettings,
    append_row,
    draw_runtimes,
    measure,
    measure_runtimes,
    read_rows,
    relative_error,
    run_job,
    table_rows,
)
from inline.commands import benchmark
from inline.utils.errors import UserError
from tests.conftest import run_tool


class Twice(nn.Module):
    def forward(self, image: Tensor) -> tuple[Tensor]:
        return (2 * image,)


def job(runtime: str = 'ONNX Runtime', repetitions: int = 6, seconds: float = 60.0) -> Job:
    return Job('PVT-S', 32, runtime, 1, repetitions, seconds, '.')


def test_errors_are_relative_norms() -> None:
    ones = torch.ones(4)
    assert relative_error([ones * 1.1, ones], [ones, ones]) == pytest.approx(0.1, rel=1e-4)
    assert relative_error([torch.ones(3)], [ones]) == float('inf')
    assert relative_error([ones * float('nan'), ones], [ones, ones]) == float('inf')


@pytest.mark.parametrize('factor', [2.01, 3.0, float('nan')])
def test_outputs_that_differ_are_not_timed(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(image: Tensor) -> list[Tensor]:
        calls.append(1)
        return [factor * image]

    monkeypatch.setattr(runtimes, 'build_network', lambda *_: Twice())
    monkeypatch.setattr(runtimes, 'load_runtime', lambda *_: run)
    row = measure(job())
    assert len(calls) == 1
    assert 'speedup' not in row
    assert row['note'].startswith('not timed: outputs differ by')


def test_outputs_within_the_tolerance_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, 'build_network', lambda *_: Twice())
    monkeypatch.setattr(runtimes, 'load_runtime', lambda *_: lambda image: [2.001 * image])
    row = measure(job())
    assert float(row['speedup']) > 0
    assert float(row['error']) == pytest.approx(5e-4, rel=0.02)
    assert row['repetitions'] == 6
    # A slow model is repeated less often, but five times.
    assert measure(job(seconds=0.0))['repetitions'] == 5


def fake_row(runtime: str, speedup: str, **cells: Any) -> dict[str, Any]:
    known = {'model': 'PVT-S', 'size': 224, 'runtime': runtime, 'threads': 1, 'speedup': speedup}
    return {**known, 'spread': '0.05' if speedup else '', 'eager ms': '100.0' if speedup else '', **cells}


def test_table_and_figure_show_the_newest_rows(tmp_path: Path) -> None:
    path = tmp_path / 'runtimes.csv'
    assert table_rows(path) == [['model', 'size', 'threads', 'eager float32 (ms)', *TOLERANCES]]
    with pytest.raises(UserError, match='has no rows to draw'):
        draw_runtimes(path, tmp_path / 'a.png')
    for row in (
        fake_row('OpenVINO', '1.10'),
        fake_row('OpenVINO', '1.50'),
        fake_row('compiled', '', note='failed: x'),
        fake_row('OpenVINO', '1.30', size=1024),
        fake_row('OpenVINO', '1.20', model='DeiT-T', size=512),
    ):
        append_row(path, row)
    assert len(read_rows(path)) == 5
    assert tuple(read_rows(path)[0]) == COLUMNS
    _, *lines = table_rows(path)
    # By size, not by the text of the size.
    assert [line[:2] for line in lines] == [['PVT-S', '224'], ['DeiT-T', '512'], ['PVT-S', '1024']]
    assert lines[0] == ['PVT-S', '224', '1', '100', '', 'failed: x', '', '1.50 (0.05)', '', '']
    draw_runtimes(path, tmp_path / 'new' / 'a.png')
    assert (tmp_path / 'new' / 'a.png').stat().st_size > 10_000
    path.write_text('model,speed\na,1\n')
    with pytest.raises(UserError, match='has unexpected columns'):
        append_row(path, fake_row('OpenVINO', '1.0'))


def test_every_row_is_written_when_it_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, started, lines = tmp_path / 'runtimes.csv', [], []

    def run(started_job: Job, _: float) -> dict[str, Any]:
        started.append((started_job.runtime, len(read_rows(path))))
        if started_job.runtime == 'export' and started_job.size == 64:
            return {'note': 'failed: no memory'}
        return {'speedup': '2.00', 'spread': '0.10', 'eager ms': '5.0'}

    monkeypatch.setattr(runtimes, 'run_job', run)
    settings = RuntimeSettings(('PVT-S',), (32, 64), ('eager bf16', 'ONNX Runtime'))
    rows = list(measure_runtimes(settings, path, lines.append))
    # Without its file a runtime is not started.
    assert started == [
        ('export', 0),
        ('eager bf16', 0),
        ('ONNX Runtime', 1),
        ('export', 2),
        ('eager bf16', 2),
    ]
    assert [row.get('note', '') for row in rows] == ['', '', '', 'not timed: export failed: no memory']
    assert [row['model'] for row in read_rows(path)] == ['PVT-S'] * 4
    assert len(lines) == 6
    assert lines[-1].startswith('[6/6] PVT-S at 64, ONNX Runtime: not timed')
    assert lines[-1].endswith('about 0:00 left')


@pytest.mark.exhaustive
def test_process_measures_and_failures_become_notes(tmp_path: Path) -> None:
    cells = run_job(Job('DeiT-T', 32, 'eager bf16', 1, 5, 0.0, str(tmp_path)), timeout=300)
    assert float(cells['speedup']) > 0
    assert 0 < float(cells['error']) < TOLERANCES['eager bf16']
    missing = run_job(Job('DeiT-T', 32, 'ONNX Runtime', 1, 5, 0.0, str(tmp_path)), timeout=300)
    assert missing['note'].startswith('failed: ')
    assert 'DeiT-T-32.onnx' in missing['note']
    assert run_job(job(), timeout=0.01) == {'note': 'not timed: not ready after 0 seconds'}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--runtimes', 'tensorrt'], "--runtimes 'tensorrt': choose one of eager-bf16, compiled, onnx"),
        (['--runtimes', '--models', 'inline-pvt-small'], "--models 'inline-pvt-small': choose one of DeiT-T"),
        (['--runtimes', '--sizes', '8'], '--sizes 8: each side must be from 32'),
        (['--sizes', '224'], '--sizes needs --runtimes'),
        (['--runtimes', '--redraw', 'a.csv'], '--redraw needs --figure FILE'),
    ],
)
def test_wrong_arguments_are_reported(words: list[str], message: str) -> None:
    done = run_tool('tools/benchmark.py', *words)
    assert (done.returncode, done.stdout) == (2, '')
    assert message in done.stderr


def test_command_and_benchmark_have_the_same_runtimes() -> None:
    words = [name.lower().replace('onnx runtime', 'onnx').replace(' ', '-') for name in TOLERANCES]
    assert list(benchmark.RUNTIME_NAMES) == words
