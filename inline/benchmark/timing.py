"""Interleaved timing, peak memory, and the inference speed of models."""

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from inline.benchmark.hardware import CPU

Run = Callable[[], object]
# Autocast types by name; None is full precision.
AUTOCAST_DTYPES = {'float32': None, 'bfloat16': torch.bfloat16, 'float16': torch.float16}
# Above all levels that the profiler uses: otherwise it prints two lines to stderr per measurement.
_PROFILER_LOG_LEVEL = '6'


@dataclass(frozen=True)
class Timing:
    """The seconds of each repetition, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median."""
        return interquartile_range(self.seconds) / self.median

    def speedups(self, other: 'Timing') -> list[float]:
        """Return how many times faster this is than `other` in each repetition."""
        return [theirs / ours for theirs, ours in zip(other.seconds, self.seconds, strict=True)]

    def speedup(self, other: 'Timing') -> float:
        """Return the median of :meth:`speedups`."""
        return statistics.median(self.speedups(other))


def interquartile_range(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method='inclusive')
    return high - low


def interleave(
    runs: Mapping[str, Run],
    repetitions: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
    *,
    warm_up: int = 1,
    pause: float = 0.0,
    cuda_events: bool = False,
) -> dict[str, Timing]:
    """Time several functions alternately: other load on the machine then affects all of them alike.

    Each repetition has a random order, because the predecessor of a function affects its cache hits.
    The first calls of each function, to warm up, are not timed.

    Args:
        runs: Functions by name.
        repetitions: Number of timed calls of each function.
        device: Device that the functions use.
        clock: ``time.process_time`` excludes the time of other processes on a busy machine; use it only
            with one thread.
        warm_up: Number of calls of each function before.
        pause: Seconds to sleep before each timed call. The threads of a library wait actively for some
            milliseconds after its work, and would take time from another library.
        cuda_events: Measure between events on the GPU instead of with the clock.
    """
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)
    for name in names * warm_up:
        runs[name]()
    for _ in range(repetitions):
        order.shuffle(names)
        for name in names:
            _synchronize(device)
            if cuda_events:
                seconds[name].append(_seconds_between_events(runs[name]))
                continue
            if pause:
                time.sleep(pause)
            start = clock()
            runs[name]()
            _synchronize(device)
            seconds[name].append(clock() - start)
    return {name: Timing(tuple(seconds[name])) for name in runs}


def _seconds_between_events(run: Run) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def peak_memory(run: Run, device: torch.device) -> int:
    """Return the peak bytes of tensors on the device during `run`, beyond those allocated before.

    On a CPU this covers torch's allocator, not the workspaces that libraries allocate themselves.
    """
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault('KINETO_LOG_LEVEL', _PROFILER_LOG_LEVEL)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        run()
    assert trace.profiler is not None
    events = [
        event
        for event in trace.profiler.kineto_results.events()
        if event.name() == '[memory]' and event.device_type() == DeviceType.CPU
    ]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


@dataclass(frozen=True)
class BenchmarkSettings:
    """How models are timed.

    Args:
        batch: Batch size for the throughput; the latency is of one image.
        repetitions: Repetitions of each measurement.
        dtype: A key of AUTOCAST_DTYPES; half precision uses autocast.
        device: Device of models and images.
    """

    batch: int = 1
    repetitions: int = 7
    dtype: str = 'float32'
    device: torch.device = CPU


@dataclass(frozen=True)
class InferenceSpeed:
    """Speed of one model at one image size; `peak_bytes` does not include the weights."""

    latency: Timing
    images_per_second: float
    peak_bytes: int


def measure_inference(
    model: nn.Module,
    shape: tuple[int, int],
    settings: BenchmarkSettings,
    forward: Callable[[Tensor], object] | None = None,
) -> InferenceSpeed:
    """Measure latency, throughput and peak memory of a model on images of (height, width).

    `forward` runs the model on images (B, 3, height, width); the default calls the model itself.
    """
    device, batch = settings.device, settings.batch
    model.to(device).eval()
    single, batched = (
        make_inference(forward or model, torch.randn(size, 3, *shape, device=device), settings.dtype)
        for size in (1, batch)
    )
    latency = interleave({'model': single}, settings.repetitions, device)['model']
    timing = latency if batch == 1 else interleave({'model': batched}, settings.repetitions, device)['model']
    return InferenceSpeed(latency, batch / timing.median, peak_memory(batched, device))


def make_inference(
    model: Callable[[Tensor], object], image: Tensor, dtype: str = 'float32'
) -> Callable[[], None]:
    """Return a function that runs the model on images (B, 3, H, W) without gradients."""
    autocast_dtype = AUTOCAST_DTYPES[dtype]

    def run() -> None:
        precision = (
            nullcontext() if autocast_dtype is None else torch.autocast(image.device.type, autocast_dtype)
        )
        with torch.inference_mode(), precision:
            model(image)

    return run


def _synchronize(device: torch.device) -> None:
    """Wait for the GPU, which runs asynchronously."""
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
