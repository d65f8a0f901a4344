"""Interleaved timing, peak memory and the speed of a model."""

import subprocess
import sys
import time

import pytest
import torch

from inline.benchmark import CPU, Timing, describe_machine, interleave, peak_memory
from inline.benchmark.timing import BenchmarkSettings, measure_inference
from tests.models.families import build


def test_runs_are_interleaved_in_random_order() -> None:
    calls: list[str] = []
    runs = {name: lambda name=name: calls.append(name) for name in 'abc'}
    timings = interleave(runs, repetitions=6, device=CPU)
    rounds = [calls[i : i + 3] for i in range(0, len(calls), 3)]
    assert len(rounds) == 7
    assert all(sorted(calls) == ['a', 'b', 'c'] for calls in rounds)
    assert len(set(map(tuple, rounds[1:]))) > 1
    assert list(timings) == ['a', 'b', 'c']
    assert all(len(timing.seconds) == 6 for timing in timings.values())


def test_pauses_are_before_each_timed_call_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, log = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        log.append('pause')

    def run() -> None:
        now[0] += 1
        log.append('run')

    monkeypatch.setattr(time, 'sleep', sleep)
    timing = interleave({'a': run}, 2, CPU, clock=lambda: now[0], pause=5)['a']
    assert log == ['run', 'pause', 'run', 'pause', 'run']
    assert timing.seconds == (1, 1)


def test_runs_are_timed_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """With events whose clock advances in the runs only, as a GPU's."""
    clock = [0.0]

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.time = clock[0]

        def synchronize(self) -> None:
            assert self.time == clock[0]

        def elapsed_time(self, end: 'Event') -> float:
            return end.time - self.time

    monkeypatch.setattr(torch.cuda, 'Event', Event)
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda _: None)
    runs = {
        name: lambda milliseconds=milliseconds: clock.__setitem__(0, clock[0] + milliseconds)
        for name, milliseconds in (('fast', 2.0), ('slow', 6.0))
    }
    timings = interleave(runs, 3, torch.device('cuda'), warm_up=4, cuda_events=True)
    assert timings['fast'].seconds == pytest.approx([0.002] * 3)
    assert timings['slow'].seconds == pytest.approx([0.006] * 3)
    assert clock[0] == pytest.approx(7 * (2 + 6))


def test_speedup_is_robust_to_load_that_affects_both_runs() -> None:
    # Other load slows the last two repetitions down fourfold.
    ours, theirs = Timing((1.0, 1.0, 1.0, 4.0, 4.0)), Timing((2.0, 2.0, 2.0, 8.0, 8.0))
    assert ours.speedup(theirs) == 2
    assert theirs.speedup(ours) == 0.5
    assert theirs.median == 2
    assert Timing((1.0, 2.0, 3.0)).spread == pytest.approx(0.5)
    assert Timing((1.0,)).spread == 0


def test_peak_memory_is_the_largest_simultaneous_allocation() -> None:
    def run() -> None:
        first = torch.ones(1000, 1000)
        second = first + 1
        del first
        second.add_(1)
        torch.zeros(500, 1000)

    # Two matrices of four megabytes. The smaller one is allocated after the first is freed.
    assert peak_memory(run, CPU) == pytest.approx(8e6, rel=0.01)


def test_model_is_timed_on_one_image_and_on_a_batch() -> None:
    speed = measure_inference(build('InLineDeiT'), (64, 96), BenchmarkSettings(batch=2, repetitions=2))
    assert len(speed.latency.seconds) == 2
    assert speed.images_per_second > 0
    assert speed.peak_bytes > 0


def test_machine_description_contains_torch_version() -> None:
    assert torch.__version__ in describe_machine(CPU)


@pytest.mark.slow
def test_prepare_for_timing_keeps_freed_memory_and_peak_memory_prints_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Allocate and free 16 MB repeatedly: after a warm-up there are no page faults. Needs a fresh process."""
    monkeypatch.delenv('KINETO_LOG_LEVEL', raising=False)
    code = (
        'import resource, torch\n'
        'from inline.benchmark import CPU, peak_memory, prepare_for_timing\n'
        'print(peak_memory(lambda: torch.ones(1000), CPU))\n'
        'prepare_for_timing(1)\n'
        'def allocate(): torch.ones(4 * 2**20)\n'
        'for _ in range(40): allocate()\n'
        'before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n'
        'for _ in range(20): allocate()\n'
        'print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    peak, page_faults = done.stdout.split()
    assert peak == '4000'
    assert done.stderr == ''
    # Returning the memory to the system would cause 4,096 page faults per iteration.
    assert int(page_faults) < 4096
