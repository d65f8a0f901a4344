"""Time and peak memory of a backbone against the side of the image, for several attentions.

Swin-T with InLine, softmax and a baseline in all blocks. Each point is measured in its own process, so that
its peak memory is what the operating system gave to that process. An attention is not measured at larger
images once it exceeds the limits; where it reaches the memory of a common GPU follows from its growth.
"""

import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inline.benchmark.timing import BenchmarkSettings, interquartile_range, make_inference
from inline.models import InLineSwin
from inline.models.block import Block
from inline.models.mixers import AttentionInputs, SoftmaxMixer, merge_heads
from inline.utils.errors import UserError
from inline.utils.tables import read_csv, write_csv

SIZES = (224, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
# Memory of a common GPU, in MB.
GPU_MEMORY = 24 * 1024
EXTRAPOLATED = 'extrapolated'
# Growth is not extrapolated further than to this multiple of the largest measured side.
MAX_EXTRAPOLATION = 4
# A point is repeated until it took this many seconds.
MIN_SECONDS = 2.0
# Seconds for the start of a process, in addition to the time limit.
START_UP = 120.0


class ExplicitSoftmaxMixer(SoftmaxMixer):
    """Softmax attention that stores the weights of all pairs of tokens."""

    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(self.weights(inputs) @ inputs.heads()[2])


def explicit_softmax_swin() -> nn.Module:
    model = InLineSwin('tiny', mixers=GLOBAL_SOFTMAX)
    for block in model.modules():
        if isinstance(block, Block):
            block.mixer = ExplicitSoftmaxMixer(block.mixer.qkv.in_features, block.mixer.num_heads)
    return model


GLOBAL_SOFTMAX = {'type': 'Softmax', 'window_size': None, 'relative_position': False}
MODELS: dict[str, Callable[[], nn.Module]] = {
    'InLine': partial(InLineSwin, 'tiny', mixers={'type': 'InLine'}),
    'MLLA': partial(InLineSwin, 'tiny', mixers={'type': 'MLLA'}),
    'softmax in windows of 7': partial(InLineSwin, 'tiny', mixers={'type': 'Softmax'}),
    'fused softmax': partial(InLineSwin, 'tiny', mixers=GLOBAL_SOFTMAX),
    'softmax with explicit weights': explicit_softmax_swin,
}


@dataclass(frozen=True)
class Point:
    """One attention at one image size.

    Args:
        attention: A key of MODELS.
        size: Side of the image in pixels.
        seconds: Median time of a forward pass; None if there is none.
        spread: Interquartile range of the times divided by their median.
        repetitions: Number of timed forward passes.
        base_mb, peak_mb: Largest memory of the process before and during the forward pass (on a GPU, of
            torch's allocator).
        note: Why there is no time, or EXTRAPOLATED; empty for a measured point.
        conditions: Hardware, threads and so on, in one line.
    """

    attention: str
    size: int
    seconds: float | None = None
    spread: float | None = None
    repetitions: int = 0
    base_mb: float | None = None
    peak_mb: float | None = None
    note: str = ''
    conditions: str = ''

    @property
    def is_measured(self) -> bool:
        return self.seconds is not None

    @property
    def used_mb(self) -> float:
        """Memory of the forward pass, above 0."""
        return max((self.peak_mb or 0.0) - (self.base_mb or 0.0), 1e-3)

    def describe(self) -> str:
        """Return the result in words."""
        if self.is_measured:
            return f'{self.seconds:.3f} s, {self.peak_mb:.0f} MB'
        return f'{self.peak_mb:.0f} MB, {self.note}' if self.peak_mb else self.note


@dataclass(frozen=True)
class Limits:
    """When to stop: seconds of one forward pass, and megabytes of its process."""

    seconds: float
    mb: float


Measure = Callable[[str, int, Limits], Point]


def measure_resolutions(
    sizes: Sequence[int], limits: Limits, measure: Measure, conditions: str
) -> Iterator[Point]:
    """Measure all attentions at each size, then extrapolate to GPU_MEMORY.

    The attentions of one size are neighbours in time. An attention ends where the growth between its last
    two sizes predicts that it will exceed a limit, or where it does.
    """
    measured: dict[str, list[Point]] = {name: [] for name in MODELS}
    ended: set[str] = set()
    for size in sorted(sizes):
        for name, points in measured.items():
            if name in ended:
                continue
            point = _beyond_limits(name, size, points, limits) or measure(name, size, limits)
            point = replace(point, conditions=conditions)
            if point.is_measured:
                points.append(point)
            else:
                ended.add(name)
            yield point
    for name, points in measured.items():
        crossing = extrapolate_memory(points, GPU_MEMORY)
        if crossing is not None:
            yield Point(name, round(crossing), peak_mb=GPU_MEMORY, note=EXTRAPOLATED, conditions=conditions)


def _beyond_limits(name: str, size: int, points: Sequence[Point], limits: Limits) -> Point | None:
    """Return a point that says why it is not measured; None if it can be."""
    if len(points) < 2:
        return None
    sizes = [point.size for point in points[-2:]]
    seconds = _extend(sizes, [point.seconds or 0.0 for point in points[-2:]], size)
    mb = (points[-1].base_mb or 0.0) + _extend(sizes, [point.used_mb for point in points[-2:]], size)
    if seconds > limits.seconds:
        return Point(name, size, note=f'not run: about {seconds:.0f} s, limit {limits.seconds:g} s')
    if mb > limits.mb:
        return Point(name, size, note=f'not run: about {mb / 1024:.0f} GB, limit {limits.mb / 1024:.0f} GB')
    return None


def _extend(sizes: Sequence[int], values: Sequence[float], size: int) -> float:
    """Return the value at ``size`` of a power law through two values."""
    return values[1] * (size / sizes[1]) ** _exponent(sizes, values)


def _exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    return math.log(values[1] / values[0]) / math.log(sizes[1] / sizes[0])


def extrapolate_memory(points: Sequence[Point], mb: float) -> float | None:
    """Return the side at which the peak memory reaches ``mb``.

    The memory beyond that of the process before the forward pass follows a power law through the last two
    points. None with fewer points, if it does not grow, or if that side is too far from the last one.
    """
    if len(points) < 2:
        return None
    last = points[-1]
    base = last.base_mb or 0.0
    used = [point.used_mb for point in points[-2:]]
    exponent = _exponent([point.size for point in points[-2:]], used)
    if exponent <= 0:
        return None
    factor = ((mb - base) / used[1]) ** (1 / exponent)
    return last.size * factor if factor <= MAX_EXTRAPOLATION else None


def measure_in_process(settings: BenchmarkSettings, threads: int) -> Measure:
    """Return a function that measures a point in a new process."""

    def measure(name: str, size: int, limits: Limits) -> Point:
        options = {
            'name': name,
            'size': size,
            'limits': asdict(limits),
            'settings': {**asdict(settings), 'device': str(settings.device)},
            'threads': threads,
        }
        command = [sys.executable, '-m', 'inline.benchmark.resolution', json.dumps(options)]
        seconds = START_UP + max(limits.seconds, MIN_SECONDS) * 2
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return Point(name, size, note=f'stopped after {seconds:.0f} s')
        if run.returncode == 0:
            return Point(name, size, **json.loads(run.stdout.splitlines()[-1]))
        reason = run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f'exit code {run.returncode}'
        if 'memory' in reason.lower():
            return Point(name, size, note=f'out of memory, limit {limits.mb / 1024:.0f} GB')
        raise UserError(f'{name} at {size}×{size} failed: {reason}')

    return measure


def measure_here(
    name: str, size: int, limits: Limits, settings: BenchmarkSettings, threads: int
) -> dict[str, Any]:
    """Measure a point in this process and return the fields of :class:`Point` that it determines."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    device = settings.device
    if device.type == 'cpu':
        # Allocations beyond it fail, instead of making the machine swap or kill another process.
        resource.setrlimit(resource.RLIMIT_DATA, (int(limits.mb * 2**20), resource.RLIM_INFINITY))
    model = MODELS[name]().to(device).eval()
    image = torch.randn(settings.batch, 3, size, size, device=device)
    run = make_inference(model, image, settings.dtype)
    base = _peak_mb(device)
    seconds: list[float] = []
    while not seconds or (len(seconds) < settings.repetitions and sum(seconds) < MIN_SECONDS):
        start = time.perf_counter()
        run()
        if device.type == 'cuda':
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    # The first pass of several includes one-time costs.
    timed = seconds[1:] or seconds
    median = statistics.median(timed)
    return {
        'seconds': round(median, 4),
        'spread': round(interquartile_range(timed) / median, 3),
        'repetitions': len(timed),
        'base_mb': round(base, 1),
        'peak_mb': round(_peak_mb(device), 1),
    }


def _peak_mb(device: torch.device) -> float:
    """Return the largest memory of this process so far; on a GPU, that of torch's allocator."""
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated(device) / 2**20
    status = Path('/proc/self/status')
    if status.exists():
        # Not getrusage: on Linux its maximum includes the process that started this one.
        lines = dict(line.split(':', 1) for line in status.read_text().splitlines())
        return int(lines['VmHWM'].split()[0]) / 1024
    unit = 2**20 if sys.platform == 'darwin' else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def write_points(points: Iterable[Point], path: Path) -> None:
    write_csv(path, [field.name for field in fields(Point)], map(astuple, points))


def read_points(path: Path) -> list[Point]:
    """Read points that :func:`write_points` wrote."""
    names = [field.name for field in fields(Point)]
    lines = read_csv(path)
    if not lines or set(names) != set(lines[0]):
        raise UserError(f'{str(path)!r} has no points by resolution: expected the columns {", ".join(names)}')
    return [_parse(line) for line in lines]


def _parse(line: Mapping[str, str]) -> Point:
    numbers = {
        name: float(line[name]) if line[name] else None
        for name in ('seconds', 'spread', 'base_mb', 'peak_mb')
    }
    return Point(
        line['attention'],
        int(line['size']),
        **numbers,
        repetitions=int(line['repetitions']),
        note=line['note'],
        conditions=line['conditions'],
    )


def main() -> None:
    """Measure one point, described by JSON as the only argument, and print the result as JSON."""
    options = json.loads(sys.argv[1])
    settings = options.pop('settings')
    settings['device'] = torch.device(settings['device'])
    limits = Limits(**options.pop('limits'))
    try:
        point = measure_here(**options, limits=limits, settings=BenchmarkSettings(**settings))
    except (MemoryError, RuntimeError) as error:
        sys.exit(str(error).partition('\n')[0] or 'out of memory')
    print(json.dumps(point))


if __name__ == '__main__':
    main()
