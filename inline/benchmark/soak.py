"""Soak test: memory and open files of a long training run, a verdict on their growth, and a plot."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import psutil
from matplotlib.figure import Figure
from numpy.typing import NDArray

from inline.utils.errors import UserError
from inline.utils.tables import write_csv

MEGABYTE = 1e6
# Limits of the growth after warm-up: memory in percent, open files, shared tensors in percent. The last limit
# is high because the number of shared tensors fluctuates widely.
MAX_MEMORY_GROWTH, MAX_FILE_GROWTH, MAX_SHARED_GROWTH = 2.0, 0.5, 20.0
# Data workers pass tensors in files of this folder. Each is open on both sides until the tensor is received.
_SHARED_MEMORY = '/dev/shm/'
MIN_SAMPLES = 10


@dataclass(frozen=True)
class Sample:
    """Resources of a training process and all its descendants at one moment. Memory is in megabytes.

    Attributes:
        seconds: Time since the start.
        processes: Number of processes.
        main: Anonymous memory of the training process, without pages of mapped files.
        workers: Anonymous memory of its descendants.
        resident: Resident memory of all processes (RSS), which counts shared pages once per process.
        handles: Open file descriptors of all processes, without shared tensors.
        shared: Open files of tensors that data workers pass to the training process.
        threads: Threads of all processes.
    """

    seconds: float
    processes: int
    main: float
    workers: float
    resident: float
    handles: int
    shared: int
    threads: int

    @property
    def memory(self) -> float:
        return self.main + self.workers


@dataclass(frozen=True)
class Verdict:
    """Growth after warm-up, from a line fitted to the samples.

    Attributes:
        start: End of warm-up in seconds.
        memory: Growth of memory in percent of the start of the line.
        handles: Growth of the number of open files.
        shared: Growth of the number of shared tensors in percent.
    """

    start: float
    memory: float
    handles: float
    shared: float

    @property
    def passed(self) -> bool:
        return (
            self.memory < MAX_MEMORY_GROWTH
            and self.handles < MAX_FILE_GROWTH
            and self.shared < MAX_SHARED_GROWTH
        )

    def describe(self) -> str:
        return (
            f'{"passed" if self.passed else "FAILED"}: after {self.start / 60:.1f} minutes of warm-up memory '
            f'grew by {self.memory:+.2f} % (limit {MAX_MEMORY_GROWTH:g} %), open files by '
            f'{self.handles:+.1f} (limit {MAX_FILE_GROWTH:g}), shared tensors by {self.shared:+.1f} % '
            f'(limit {MAX_SHARED_GROWTH:g} %)'
        )


def take_sample(process: psutil.Process, began: float) -> Sample:
    """Sample a process and its descendants; skip descendants that exit meanwhile."""
    memory, resident, threads = [], 0.0, 0
    files: list[str] = []
    for member in [process, *process.children(recursive=True)]:
        try:
            anonymous, open_files = _anonymous_memory(member.pid), _open_files(member.pid)
            rss, running = member.memory_info().rss, member.num_threads()
        except (psutil.Error, OSError):
            if member is process:
                raise
            continue
        memory.append(anonymous / MEGABYTE)
        resident += rss / MEGABYTE
        threads += running
        files += open_files
    shared = sum(path.startswith(_SHARED_MEMORY) for path in files)
    seconds = time.monotonic() - began
    return Sample(
        seconds, len(memory), memory[0], sum(memory[1:]), resident, len(files) - shared, shared, threads
    )


def _anonymous_memory(pid: int) -> int:
    """Return the bytes of anonymous pages. The count of library pages depends on other programs."""
    words = Path(f'/proc/{pid}/status').read_text().partition('RssAnon:')[2].split()
    if not words:
        # It has ended, and its parent has not noticed yet.
        raise psutil.ZombieProcess(pid)
    return 1024 * int(words[0])


def _open_files(pid: int) -> list[str]:
    """Return the targets of the file descriptors; skip those that are closed meanwhile."""
    targets = []
    with os.scandir(f'/proc/{pid}/fd') as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                targets.append(os.readlink(entry.path))
    return targets


def collect_samples(
    process: psutil.Process, seconds: float, interval: float, report: Callable[[Sample], None]
) -> list[Sample]:
    """Sample until the time is over or the process has ended."""
    began = time.monotonic()
    samples: list[Sample] = []
    # On a busy machine, the time may end before there are enough samples for a verdict.
    while time.monotonic() - began < seconds or len(samples) < MIN_SAMPLES:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                break
            samples.append(take_sample(process, began))
        except (psutil.Error, OSError):
            break
        report(samples[-1])
        time.sleep(interval)
    return samples


def judge(samples: Sequence[Sample], warm_up: float = 0.25) -> Verdict:
    """Judge a run, ignoring the fraction `warm_up` of its time at the start."""
    start = warm_up * samples[-1].seconds if samples else 0.0
    kept = [sample for sample in samples if sample.seconds >= start]
    if len(kept) < MIN_SAMPLES:
        raise UserError(f'{len(kept)} samples after warm-up: at least {MIN_SAMPLES} are needed, run longer')
    seconds = _column(kept, 'seconds')
    (memory, memory_level), (handles, _), (shared, shared_level) = (
        fit_line(seconds, _column(kept, name)) for name in ('memory', 'handles', 'shared')
    )
    span = float(seconds[-1] - seconds[0])
    return Verdict(
        start,
        memory=100 * memory * span / memory_level,
        handles=handles * span,
        shared=100 * shared * span / max(shared_level, 1.0),
    )


def _column(samples: Sequence[Sample], name: str) -> NDArray[np.float64]:
    return np.array([getattr(sample, name) for sample in samples], dtype=np.float64)


def fit_line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Fit a line with the Theil-Sen estimator; return its slope and its value at the first x.

    The slope is the median of the slopes of all pairs. Outliers in up to 29 % of the points, such as peaks
    during validation, do not change it.
    """
    first, second = np.triu_indices(len(x), 1)
    slope = float(np.median((y[second] - y[first]) / (x[second] - x[first])))
    return slope, float(np.median(y - slope * (x - x[0])))


def write_samples(samples: Sequence[Sample], path: Path) -> None:
    rows = [[f'{x:.1f}' if isinstance(x, float) else x for x in astuple(sample)] for sample in samples]
    write_csv(path, [field.name for field in fields(Sample)], rows)


def plot_samples(samples: Sequence[Sample], verdict: Verdict, path: Path) -> None:
    """Plot memory with its fitted line above, open files and threads below; warm-up is shaded."""
    minutes, memory = _column(samples, 'seconds') / 60, _column(samples, 'memory')
    figure = Figure(figsize=(8, 5.5), layout='constrained')
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, name, style in (
        (upper, 'memory', {'label': 'all processes'}),
        (upper, 'main', {'label': 'training'}),
        (upper, 'workers', {'label': 'data workers'}),
        (lower, 'handles', {'label': 'open files'}),
        (lower, 'shared', {'label': 'shared tensors', 'alpha': 0.5}),
        (lower, 'threads', {'label': 'threads'}),
    ):
        axes.plot(minutes, _column(samples, name), **style)
    judged = minutes >= verdict.start / 60
    slope, level = fit_line(minutes[judged], memory[judged])
    line = level + slope * (minutes[judged] - minutes[judged][0])
    upper.plot(minutes[judged], line, 'k--', label='fitted line')
    title = f'memory {verdict.memory:+.2f} %, open files {verdict.handles:+.1f} after warm-up'
    upper.set(ylabel='anonymous memory (MB)', title=title)
    lower.set(ylabel='number, all processes', xlabel='time (minutes)')
    for axes in (upper, lower):
        axes.axvspan(0, verdict.start / 60, color='0.9', label='warm-up')
        axes.set_ylim(bottom=0)
        axes.legend(loc='best', ncols=3, fontsize='small')
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
