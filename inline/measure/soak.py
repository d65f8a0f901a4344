"""Whether a long training holds its memory and its open files: sampling, the verdict, and a picture."""

import csv
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import psutil
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from inline.errors import UserError

MEGABYTE = 1e6
# Over the time that is judged: of memory in percent, of open files, and of shared tensors in percent. How
# many of these are on their way changes from moment to moment, and the line with it.
MAX_MEMORY_GROWTH, MAX_HANDLE_GROWTH, MAX_SHARED_GROWTH = 2.0, 0.5, 20.0
# Data workers hand tensors on in such files, each of which is open on both sides while it is on its way.
_SHARED_MEMORY = '/dev/shm/'
MIN_SAMPLES = 10


@dataclass(frozen=True)
class Sample:
    """A training and all processes below it at one moment. Memory in megabytes.

    Args:
        seconds: Since the training began.
        processes: How many there are.
        main: Memory of the training itself: anonymous pages, not those of files that it reads.
        workers: Memory of the processes below it, counted so, too.
        resident: Of all, with shared pages counted in each (RSS).
        handles: Open files of all, sockets and pipes included, shared tensors not.
        shared: Open files that hold tensors on their way from data workers.
        threads: Of all.
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
    """Growth over the time after warm-up, by a line through it.

    Args:
        start: Where warm-up ended, in seconds.
        memory: Growth in percent of the line's beginning.
        handles: Growth in open files.
        shared: Growth of tensors on their way, in percent.
    """

    start: float
    memory: float
    handles: float
    shared: float

    @property
    def holds(self) -> bool:
        return (
            self.memory < MAX_MEMORY_GROWTH
            and self.handles < MAX_HANDLE_GROWTH
            and self.shared < MAX_SHARED_GROWTH
        )

    def describe(self) -> str:
        word = 'holds' if self.holds else 'GROWS'
        return (
            f'{word}: after {self.start / 60:.1f} minutes of warm-up memory grew by {self.memory:+.2f} % '
            f'(allowed: less than {MAX_MEMORY_GROWTH:g} %), open files by {self.handles:+.1f} '
            f'(less than {MAX_HANDLE_GROWTH:g}) and tensors on their way by {self.shared:+.1f} % '
            f'(less than {MAX_SHARED_GROWTH:g} %)'
        )


def take_sample(process: psutil.Process, began: float) -> Sample:
    """Look at a process and all below it; one that ends meanwhile is left out."""
    memory, resident, threads = [], 0.0, 0
    handles: list[str] = []
    for one in [process, *process.children(recursive=True)]:
        try:
            own, links, running = _own_memory(one.pid), _open_files(one.pid), one.num_threads()
            every = one.memory_info().rss
        except (psutil.Error, OSError):
            if one is process:
                raise
            continue
        memory.append(own / MEGABYTE)
        resident += every / MEGABYTE
        threads += running
        handles += links
    shared = sum(link.startswith(_SHARED_MEMORY) for link in handles)
    seconds = time.monotonic() - began
    return Sample(
        seconds, len(memory), memory[0], sum(memory[1:]), resident, len(handles) - shared, shared, threads
    )


def _own_memory(pid: int) -> int:
    """Bytes of anonymous pages. Those of libraries would count differently whenever any program ends."""
    status = Path(f'/proc/{pid}/status').read_text()
    return 1024 * int(status.split('RssAnon:')[1].split()[0])


def _open_files(pid: int) -> list[str]:
    """What a process's handles lead to; one that is closed meanwhile is left out."""
    links = []
    with os.scandir(f'/proc/{pid}/fd') as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                links.append(os.readlink(entry.path))
    return links


def watch(
    process: psutil.Process, seconds: float, interval: float, tell: Callable[[Sample], None]
) -> list[Sample]:
    """Samples until the time is over or the process has ended, whichever comes first."""
    began = time.monotonic()
    samples: list[Sample] = []
    # On a busy machine the time may be over before there is enough to judge.
    while time.monotonic() - began < seconds or len(samples) < MIN_SAMPLES:
        try:
            # One that has ended stays to be seen, with nothing in it, until it is waited for.
            if process.status() == psutil.STATUS_ZOMBIE:
                break
            samples.append(take_sample(process, began))
        except (psutil.Error, OSError):
            break
        tell(samples[-1])
        time.sleep(interval)
    return samples


def judge(samples: Sequence[Sample], warm_up: float = 0.25) -> Verdict:
    """The verdict on a run; `warm_up` is the share of its time that is not judged."""
    start = warm_up * samples[-1].seconds if samples else 0.0
    kept = [sample for sample in samples if sample.seconds >= start]
    if len(kept) < MIN_SAMPLES:
        raise UserError(
            f'{len(kept)} samples after warm-up say nothing of growth: {MIN_SAMPLES} are needed: run longer'
        )
    seconds = np.array([sample.seconds for sample in kept])
    span = float(seconds[-1] - seconds[0])
    memory, level = fit_line(seconds, np.array([sample.memory for sample in kept]))
    handles, _ = fit_line(seconds, np.array([float(sample.handles) for sample in kept]))
    shared, on_way = fit_line(seconds, np.array([float(sample.shared) for sample in kept]))
    return Verdict(start, 100 * memory * span / level, handles * span, 100 * shared * span / max(on_way, 1.0))


def fit_line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Slope, and value at the first x, of the line by Theil and Sen: the median of the slopes of all pairs.

    Peaks in up to 29 % of the points, such as those during validation, do not move it.
    """
    first, second = np.triu_indices(len(x), 1)
    slope = float(np.median((y[second] - y[first]) / (x[second] - x[first])))
    return slope, float(np.median(y - slope * (x - x[0])))


def write_samples(samples: Sequence[Sample], path: Path) -> None:
    with path.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow([field.name for field in fields(Sample)])
        for sample in samples:
            writer.writerow([f'{x:.1f}' if isinstance(x, float) else x for x in astuple(sample)])


def draw(samples: Sequence[Sample], verdict: Verdict, path: Path) -> None:
    """Memory above, open files and threads below, over minutes; warm-up is shaded and the line dashed."""
    minutes = np.array([sample.seconds / 60 for sample in samples])
    memory = np.array([sample.memory for sample in samples])
    figure = Figure(figsize=(8, 5.5), layout='constrained')
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.plot(minutes, memory, label='all processes')
    upper.plot(minutes, [sample.main for sample in samples], label='training')
    upper.plot(minutes, [sample.workers for sample in samples], label='data workers')
    judged = minutes >= verdict.start / 60
    slope, level = fit_line(minutes[judged], memory[judged])
    upper.plot(
        minutes[judged], level + slope * (minutes[judged] - minutes[judged][0]), 'k--', label='fitted line'
    )
    upper.set_ylabel('memory of its own (MB)')
    upper.set_title(f'memory {verdict.memory:+.2f} %, open files {verdict.handles:+.1f} after warm-up')
    lower.plot(minutes, [sample.handles for sample in samples], label='open files')
    lower.plot(minutes, [sample.shared for sample in samples], label='tensors on their way', alpha=0.5)
    lower.plot(minutes, [sample.threads for sample in samples], label='threads')
    lower.set_ylabel('number, all processes')
    lower.set_xlabel('time (minutes)')
    for axes in (upper, lower):
        axes.axvspan(0, verdict.start / 60, color='0.9', label='warm-up')
        axes.set_ylim(bottom=0)
        axes.legend(loc='best', ncols=3, fontsize='small')
        axes.grid(alpha=0.3)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=120)
