"""The verdict on a long run: growth is found under noise and peaks, and noise is not taken for growth."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from inline.errors import UserError
from inline.measure.soak import Sample, fit_line, judge, take_sample
from tests.conftest import run_tool


def series(
    growth: float = 0.0,
    noise: float = 0.0,
    peaks: float = 0.0,
    handles: float = 0.0,
    shared: float = 0.0,
    length: int = 360,
) -> list[Sample]:
    """Half an hour of samples: warm-up to 1000 MB, then `growth` percent by its end.

    Some 300 tensors are on their way, now more, now less, and grow by `shared` percent.
    """
    random = np.random.default_rng(0)
    samples = []
    for index in range(length):
        seconds = 1800 * index / length
        after = max(0.0, seconds - 450) / 1350
        level = 1000 * (1 - np.exp(-seconds / 60)) * (1 + growth / 100 * after)
        # A validation at every fifth sample.
        peak = peaks if index % 5 == 0 else 0.0
        opened = 40 + int(handles * after) + (3 if peak else 0)
        main = level + noise * random.standard_normal() + peak
        on_way = int((300 + 100 * random.standard_normal()) * (1 + shared / 100 * after))
        samples.append(Sample(seconds, 3, main - 200, 200.0, 2 * main, opened, on_way, 10))
    return samples


@pytest.mark.parametrize(
    ('options', 'holds', 'memory'),
    [
        ({}, True, 0.0),
        ({'growth': 1.0}, True, 1.0),
        ({'growth': 3.0}, False, 3.0),
        ({'growth': -3.0}, True, -3.0),
        ({'noise': 10.0}, True, 0.0),
        ({'noise': 10.0, 'growth': 5.0}, False, 5.0),
        ({'peaks': 400.0}, True, 0.0),
        ({'peaks': 400.0, 'growth': 4.0}, False, 4.0),
        ({'handles': 5.0}, False, 0.0),
        ({'shared': 60.0}, False, 0.0),
    ],
    ids=str,
)
def test_growth_is_told_from_noise_and_peaks(options: dict[str, float], holds: bool, memory: float) -> None:
    verdict = judge(series(**options))
    assert verdict.holds == holds
    assert verdict.memory == pytest.approx(memory, abs=0.7)
    assert verdict.describe().startswith('holds' if holds else 'GROWS')
    assert verdict.start == pytest.approx(450, abs=10)


def test_warm_up_is_not_judged() -> None:
    assert judge(series(), warm_up=0.0).memory > judge(series()).memory
    with pytest.raises(UserError, match='samples after warm-up say nothing'):
        judge(series(length=5))
    with pytest.raises(UserError, match='0 samples'):
        judge([])


def test_a_line_passes_by_what_lies_off_it() -> None:
    x = np.arange(20.0)
    y = 3 + 2 * x
    y[[0, 7, 13, 19]] = 1000
    assert fit_line(x, y) == (2.0, 3.0)


def test_a_sample_sees_the_processes_below_and_what_they_hold(tmp_path: Path) -> None:
    """A process with one below it that holds 64 MB and ten open files."""
    below = (
        'import sys, time; held = bytearray(b"x" * 64_000_000); '
        'files = [open(sys.executable, "rb") for _ in range(10)]; print("ready", flush=True); time.sleep(600)'
    )
    above = f'import subprocess, sys; subprocess.run([sys.executable, "-c", {below!r}])'
    process = subprocess.Popen([sys.executable, '-c', above], stdout=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b'ready\n'
        alone = psutil.Process(process.pid)
        sample = take_sample(alone, 0.0)
        children = alone.children()
        assert sample.processes == 2
        assert sample.workers > 64 > sample.main
        assert sample.resident >= sample.memory
        assert sample.handles == alone.num_fds() + sum(child.num_fds() for child in children)
        assert sample.handles >= 16
    finally:
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_a_short_run_is_sampled_judged_and_drawn(digit_scenes: Path, tmp_path: Path) -> None:
    done = run_tool(
        'benchmarks/soak.py', '--minutes', '0.1', '--interval', '0.3', '--warm-up', '0', '--every', '3',
        '--data-root', digit_scenes.parent, '--out', tmp_path,
    )  # fmt: skip
    # So short a run may still grow; it must have been watched to the end.
    assert done.returncode in (0, 1), done.stderr
    assert ('holds' if done.returncode == 0 else 'GROWS') in done.stdout.splitlines()[-1]
    with (tmp_path / 'soak.csv').open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) >= 10
    assert all(float(line['main']) > 0 for line in lines)
    assert (tmp_path / 'soak.png').stat().st_size > 10_000


def test_a_training_that_fails_is_told(tmp_path: Path) -> None:
    done = run_tool(
        'benchmarks/soak.py', '--config', 'no.py', '--minutes', '5', '--interval', '0.2', '--out', tmp_path
    )
    assert done.returncode == 2
    assert "exit code 2: error: config 'no.py' does not exist" in done.stderr
    assert 'Traceback' not in done.stderr
