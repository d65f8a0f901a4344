"""Soak test: growth is detected despite noise and peaks, and noise alone passes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from inline.benchmark.soak import Sample, fit_line, judge, take_sample
from inline.utils.errors import UserError
from inline.utils.tables import read_csv
from tests.conftest import run_tool


def make_samples(
    growth: float = 0.0,
    noise: float = 0.0,
    peaks: float = 0.0,
    handles: float = 0.0,
    shared: float = 0.0,
    length: int = 360,
) -> list[Sample]:
    """Return samples of half an hour: warm-up to 1000 MB, then `growth` percent until the end.

    About 300 shared tensors, with strong noise, grow by `shared` percent.
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
        tensors = int((300 + 100 * random.standard_normal()) * (1 + shared / 100 * after))
        samples.append(Sample(seconds, 3, main - 200, 200.0, 2 * main, opened, tensors, 10))
    return samples


@pytest.mark.parametrize(
    ('options', 'passed', 'memory'),
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
def test_growth_is_distinguished_from_noise_and_peaks(
    options: dict[str, float], passed: bool, memory: float
) -> None:
    verdict = judge(make_samples(**options))
    assert verdict.passed == passed
    assert verdict.memory == pytest.approx(memory, abs=0.7)
    assert verdict.describe().startswith('passed' if passed else 'FAILED')
    assert verdict.start == pytest.approx(450, abs=10)


def test_warm_up_is_ignored() -> None:
    assert judge(make_samples(), warm_up=0.0).memory > judge(make_samples()).memory
    with pytest.raises(UserError, match='4 samples after warm-up: at least 10 are needed'):
        judge(make_samples(length=5))
    with pytest.raises(UserError, match='0 samples'):
        judge([])


def test_fitted_line_ignores_outliers() -> None:
    x = np.arange(20.0)
    y = 3 + 2 * x
    y[[0, 7, 13, 19]] = 1000
    assert fit_line(x, y) == (2.0, 3.0)


def test_sample_includes_child_processes(tmp_path: Path) -> None:
    """A process with a child that holds 64 MB and ten open files."""
    child = (
        'import sys, time; held = bytearray(b"x" * 64_000_000); '
        'files = [open(sys.executable, "rb") for _ in range(10)]; print("ready", flush=True); time.sleep(600)'
    )
    parent = f'import subprocess, sys; subprocess.run([sys.executable, "-c", {child!r}])'
    process = subprocess.Popen([sys.executable, '-c', parent], stdout=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b'ready\n'
        watched = psutil.Process(process.pid)
        sample = take_sample(watched, 0.0)
        children = watched.children()
        assert sample.processes == 2
        assert sample.workers > 64 > sample.main
        assert sample.resident >= sample.memory
        assert sample.handles == watched.num_fds() + sum(child.num_fds() for child in children)
        assert sample.handles >= 16
    finally:
        for descendant in psutil.Process(process.pid).children():
            descendant.kill()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.exhaustive
def test_short_run_is_sampled_judged_and_plotted(digit_scenes: Path, tmp_path: Path) -> None:
    done = run_tool(
        'benchmarks/soak.py', '--minutes', '0.15', '--interval', '0.2', '--warm-up', '0', '--every', '3',
        '--data-root', digit_scenes.parent, '--out', tmp_path,
    )  # fmt: skip
    # Such a short run may still grow. It must have been sampled to the end.
    assert done.returncode in (0, 1), done.stderr
    assert ('passed' if done.returncode == 0 else 'FAILED') in done.stdout.splitlines()[-1]
    rows = read_csv(tmp_path / 'soak.csv')
    assert len(rows) >= 10
    assert all(float(row['main']) > 0 for row in rows)
    assert (tmp_path / 'soak.png').stat().st_size > 10_000


@pytest.mark.slow
def test_failed_training_is_reported(tmp_path: Path) -> None:
    done = run_tool(
        'benchmarks/soak.py', '--config', 'no.py', '--minutes', '5', '--interval', '0.2', '--out', tmp_path
    )
    assert done.returncode == 2
    assert "exit code 2: error: config 'no.py' does not exist" in done.stderr
    assert 'Traceback' not in done.stderr
