"""Several things timed in turn, so that what else the machine does falls on all of them alike."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

Run = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """The seconds of each repetition, in the order in which they were made."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Distance of the quartiles, as a share of the median."""
        return quartile_distance(self.seconds) / self.median

    def speedups(self, other: 'Timing') -> list[float]:
        """How many times faster this is than the other one, in each of the repetitions made in turn."""
        pairs = zip(other.seconds, self.seconds, strict=True)
        return [theirs / ours for theirs, ours in pairs]

    def speedup(self, other: 'Timing') -> float:
        """Their median."""
        return statistics.median(self.speedups(other))


def quartile_distance(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method='inclusive')
    return high - low


def interleave(
    runs: Mapping[str, Run],
    repetitions: int,
    device: torch.device,
    warm_up: int = 1,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time every run on the device as often, one after another; the order is drawn anew each time.

    A fixed order would give one of them always the same caches. On a busy machine ``time.process_time``
    as clock leaves out the time that others had the processor; with one thread it is fair.
    """
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(seed)
    for _ in range(warm_up):
        for name in names:
            runs[name]()
    for _ in range(repetitions):
        order.shuffle(names)
        for name in names:
            seconds[name].append(_time(runs[name], device, clock))
    return {name: Timing(tuple(seconds[name])) for name in runs}


def _time(run: Run, device: torch.device, clock: Callable[[], float]) -> float:
    _wait(device)
    start = clock()
    run()
    _wait(device)
    return clock() - start


def _wait(device: torch.device) -> None:
    """GPUs work on after a call has come back."""
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
