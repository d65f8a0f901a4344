"""How fast InLine is, in the few ratios that docs/speed.md speaks of.

python -m benchmarks.speed --threads 1 > results/measured/speed.csv
"""

import csv
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.checks import check, compare
from benchmarks.ops import PASSES, NaiveSoftmaxMixer, Shape, build_peers, shapes
from benchmarks.plain import use_plain
from inline.errors import OneLineParser, UserError, exit_on_user_error
from inline.measure import Timing, describe_machine, interleave, peak_memory, prepare_for_timing
from inline.measure.flags import add_timing_flags, check_counts
from inline.measure.machine import choose_device
from inline.measure.models import inference
from inline.measure.published import DEIT_TINY, softmax_deit_tiny
from inline.models import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin

COLUMNS = ('what', 'ratio', 'bound', 'required', 'threads', 'dtype', 'clock', 'machine')
INLINE = {'type': 'InLine'}
MODELS: dict[str, Callable[[], nn.Module]] = {
    'PVT-S': partial(InLinePVT, 'small'),
    'Swin-T': partial(InLineSwin, 'tiny'),
    'DeiT-T': partial(InLineDeiT, 'tiny'),
    'CSwin-T': partial(InLineCSwin, 'tiny'),
}
ALL_INLINE: dict[str, Callable[[], nn.Module]] = {
    'PVT-S': MODELS['PVT-S'],
    'Swin-T, InLine in all stages': partial(InLineSwin, 'tiny', mixers=INLINE),
    'DeiT-T': MODELS['DeiT-T'],
    'CSwin-T, InLine in all stages': partial(InLineCSwin, 'tiny', mixers=INLINE),
}


@dataclass(frozen=True)
class Bench:
    """Where and how runs are timed."""

    device: torch.device
    repetitions: int
    clock: Callable[[], float]

    def time(self, runs: dict[str, Callable[[], None]], more: int = 1) -> dict[str, Timing]:
        """The runs in turn, `more` times as often as usual."""
        return interleave(runs, more * self.repetitions, self.device, clock=self.clock)

    def image(self, size: int) -> Tensor:
        return torch.randn(1, 3, size, size, device=self.device)


@dataclass(frozen=True)
class Row:
    """A ratio and what it should be."""

    what: str
    ratio: float
    bound: str
    required: float


def modules(bench: Bench) -> Iterator[Row]:
    """The attention module against the plain formulation, over the shapes of all families."""
    speedups: dict[str, dict[Shape, float]] = {kind: {} for kind in PASSES}
    for shape in shapes():
        x = torch.randn(1, shape.tokens, shape.dim, device=bench.device)
        peers = build_peers(shape, ('InLine', 'Plain'), x)
        check(peers, x, shape.hw, 1e-4)
        for kind, make in PASSES.items():
            runs = {name: make(peer, x, shape.hw) for name, peer in peers.items()}
            timings = bench.time(runs, _more(shape))
            speedups[kind][shape] = timings['InLine'].speedup(timings['Plain'])
            print(kind, shape, round(speedups[kind][shape], 3), file=sys.stderr, flush=True)
    for kind, required in (('forward', 1.5), ('forward+backward', 1.25)):
        many = [ratio for shape, ratio in speedups[kind].items() if shape.tokens >= 2 * shape.dim]
        what = f'attention module, {kind}, geometric mean over {len(many)} shapes with N ≥ 2C, against plain'
        yield Row(what, statistics.geometric_mean(many), 'at least', required)
    for kind, ratios in speedups.items():
        worst = min(ratios, key=lambda shape: ratios[shape])
        place = f'N = {worst.tokens}, C = {worst.dim}'
        yield Row(
            f'attention module, {kind}, worst of {len(ratios)} shapes ({place}), against plain',
            ratios[worst],
            'at least',
            0.95,
        )


def backbones(bench: Bench) -> Iterator[Row]:
    image = bench.image(512)
    for name, build in MODELS.items():
        torch.manual_seed(0)
        model = build().to(bench.device).eval()
        torch.manual_seed(0)
        plain = use_plain(build()).to(bench.device).eval()
        with torch.inference_mode():
            compare(f'{name} and its plain twin', model(image)[-1], plain(image)[-1], 1e-3)
        timings = bench.time({'ours': inference(model, image), 'plain': inference(plain, image)})
        speedup = timings['ours'].speedup(timings['plain'])
        yield Row(f'{name} at 512×512, inference, against plain', speedup, 'at least', 1.15)


def against_softmax(bench: Bench) -> Iterator[Row]:
    inline, fused, naive = InLineDeiT('tiny').eval(), softmax_deit_tiny().eval(), softmax_deit_tiny().eval()
    naive.load_state_dict(fused.state_dict())
    for block in naive.blocks:
        own = NaiveSoftmaxMixer(DEIT_TINY.embed_dims, DEIT_TINY.num_heads)
        own.load_state_dict(block.mixer.state_dict())
        block.mixer = own.eval()
    for model in (inline, fused, naive):
        model.to(bench.device)
    with torch.inference_mode():
        small = bench.image(224)
        compare('DeiT-T with SDPA and naive softmax', fused(small)[-1], naive(small)[-1], 1e-3)
    for size, peers in ((224, {'SDPA': (fused, 1.0)}), (1024, {'SDPA': (fused, 3.6), 'naive': (naive, 9.0)})):
        image = bench.image(size)
        runs = {name: inference(model, image) for name, (model, _) in peers.items()}
        # A small image takes a small time: more repetitions cost nothing.
        timings = bench.time({'ours': inference(inline, image), **runs}, 5 if size < 512 else 1)
        for name, (_, required) in peers.items():
            what = f'DeiT-T at {size}×{size}, inference, against {name} softmax with 3 heads'
            yield Row(what, timings['ours'].speedup(timings[name]), 'at least', required)


def growth(bench: Bench) -> Iterator[Row]:
    for name, build in ALL_INLINE.items():
        model = build().to(bench.device).eval()
        timings = bench.time({str(size): inference(model, bench.image(size)) for size in (512, 1024)})
        what = f'time of {name}, from 512×512 to 1024×1024'
        yield Row(what, timings['512'].speedup(timings['1024']), 'at most', 4.4)


def training_memory(bench: Bench) -> Iterator[Row]:
    image = bench.image(512)
    peaks = []
    for model in (InLinePVT('small'), use_plain(InLinePVT('small'))):
        model.to(bench.device)
        weights = sum(parameter.nbytes for parameter in model.parameters())
        peaks.append(weights + peak_memory(partial(_train_step, model, image), bench.device))
    what = 'peak memory of a training step of PVT-S at 512×512, against plain'
    yield Row(what, peaks[0] / peaks[1], 'at most', 0.9)


def _train_step(model: nn.Module, image: Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    sum(out.square().mean() for out in model(image)).backward()
    optimizer.step()


def _more(shape: Shape) -> int:
    """How many times as many repetitions: more of small shapes, which are timed less exactly."""
    return max(1, round(math.sqrt(2**24 / (shape.tokens * shape.dim**2))))


MEASUREMENTS = {
    'modules': modules,
    'backbones': backbones,
    'softmax': against_softmax,
    'growth': growth,
    'memory': training_memory,
}


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument(
        'what', nargs='*', default=list(MEASUREMENTS), help='which measurements (default: all)'
    )
    add_timing_flags(parser, repetitions=9)
    parser.add_argument(
        '--cpu-time',
        action='store_true',
        help='time by the processor, not the clock: for one thread on a machine that others use too',
    )
    args = parser.parse_args()
    check_counts(args)
    unknown = [name for name in args.what if name not in MEASUREMENTS]
    if unknown:
        raise UserError(f'unknown measurement {unknown[0]!r}: choose of {", ".join(MEASUREMENTS)}')
    device = choose_device(args.device)
    if args.cpu_time and device.type == 'cuda':
        raise UserError('--cpu-time is of the processor alone: it goes with --device cpu')
    prepare_for_timing(args.threads)
    torch.manual_seed(0)
    clock = time.process_time if args.cpu_time else time.perf_counter
    bench = Bench(device, args.repetitions, clock)
    writer = csv.writer(sys.stdout, lineterminator='\n')
    writer.writerow(COLUMNS)
    for name in args.what:
        for row in MEASUREMENTS[name](bench):
            settings = (args.threads, 'float32', 'cpu' if args.cpu_time else 'wall', describe_machine(device))
            writer.writerow([row.what, f'{row.ratio:.2f}', row.bound, row.required, *settings])
            sys.stdout.flush()


if __name__ == '__main__':
    with exit_on_user_error():
        main()
