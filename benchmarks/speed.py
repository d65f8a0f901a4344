"""Speed of InLine as the ratios that docs/speed.md reports, and the peak rates of the machine.

python -m benchmarks.speed --threads 1 > results/measured/speed.csv
"""

import copy
import csv
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.checks import check, compare
from benchmarks.ops import PASSES, NaiveSoftmaxMixer, Shape, build_peers, shapes
from benchmarks.plain import use_plain, use_torch_linear
from inline.benchmark import Timing, describe_machine, interleave, peak_memory, prepare_for_timing
from inline.benchmark.figure5 import DEIT_TINY, softmax_deit_tiny
from inline.benchmark.hardware import add_timing_flags, check_counts, choose_device
from inline.benchmark.timing import Run, interquartile_range, make_inference
from inline.models import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin
from inline.utils.arguments import check_choice
from inline.utils.environment import describe_commit
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error

COLUMNS = ('what', 'ratio', 'spread', 'bound', 'required', 'repetitions', 'batch', 'threads', 'dtype',
           'clock', 'machine', 'commit', 'date')  # fmt: skip
BATCH = 1
# Matrix side and block size in bytes for the peak rates of the machine.
MATRIX, BLOCK = 2048, 2**28
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
    """Device, repetitions and clock of all measurements."""

    device: torch.device
    repetitions: int
    clock: Callable[[], float]

    def time(self, runs: dict[str, Run], factor: int = 1) -> dict[str, Timing]:
        """Time the runs alternately, with `factor` times the usual repetitions."""
        return interleave(runs, factor * self.repetitions, self.device, clock=self.clock)

    def image(self, size: int) -> Tensor:
        return torch.randn(BATCH, 3, size, size, device=self.device)


@dataclass(frozen=True)
class Row:
    """A measured ratio and its requirement; for the machine itself a rate without requirement.

    Args:
        what: Description of the comparison.
        values: The ratio in each repetition; the median is reported.
        bound: 'at least' or 'at most'.
        required: The required ratio.
    """

    what: str
    values: Sequence[float]
    bound: str = ''
    required: float | None = None

    def cells(self) -> list[object]:
        """Return the values of COLUMNS up to the batch."""
        spread = interquartile_range(self.values)
        numbers = [f'{statistics.median(self.values):.2f}', f'{spread:.2f}']
        if self.required is None:
            return [self.what, *numbers, '', '', len(self.values), '']
        return [self.what, *numbers, self.bound, self.required, len(self.values), BATCH]


def modules(bench: Bench) -> Iterator[Row]:
    """Time the attention module against the plain formulation, over the shapes of all families."""
    speedups: dict[str, dict[Shape, list[float]]] = {name: {} for name in PASSES}
    for shape in shapes():
        x = torch.randn(BATCH, shape.tokens, shape.dim, device=bench.device)
        peers = build_peers(shape, ('InLine', 'Plain'), x)
        check(peers, x, shape.hw, 1e-4)
        for direction, make in PASSES.items():
            runs = {name: make(peer, x, shape.hw) for name, peer in peers.items()}
            timings = bench.time(runs, _repetition_factor(shape))
            speedups[direction][shape] = timings['InLine'].speedups(timings['Plain'])
            median = statistics.median(speedups[direction][shape])
            print(direction, shape, round(median, 3), file=sys.stderr, flush=True)
    for direction, required in (('forward', 1.5), ('forward+backward', 1.25)):
        many = [ratio for shape, ratio in speedups[direction].items() if shape.tokens >= 2 * shape.dim]
        shape_count = f'{len(many)} shapes with N ≥ 2C'
        comparison = f'attention module, {direction}, geometric mean over {shape_count}, against plain'
        yield Row(comparison, _mean_by_round(many, bench.repetitions), 'at least', required)
    for direction, ratios in speedups.items():
        worst = min(ratios, key=lambda shape: statistics.median(ratios[shape]))
        size = f'N = {worst.tokens}, C = {worst.dim}'
        yield Row(
            f'attention module, {direction}, worst of {len(ratios)} shapes ({size}), against plain',
            ratios[worst],
            'at least',
            0.95,
        )


def backbones(bench: Bench) -> Iterator[Row]:
    """Time backbones against a plain one, and against plain attention in the optimised backbone."""
    image = bench.image(512)
    for name, build in MODELS.items():
        torch.manual_seed(0)
        model = build().to(bench.device).eval()
        peers = {
            'a plain backbone': use_torch_linear(use_plain(copy.deepcopy(model))),
            'plain attention in the same backbone': use_plain(copy.deepcopy(model)),
        }
        for title, peer in peers.items():
            with torch.inference_mode():
                compare(f'{name} and {title}', model(image)[-1], peer(image)[-1], 1e-3)
        runs = {title: make_inference(peer, image) for title, peer in peers.items()}
        timings = bench.time({'ours': make_inference(model, image), **runs})
        for title, required in zip(peers, (1.15, 1.0), strict=True):
            speedups = timings['ours'].speedups(timings[title])
            yield Row(f'{name} at 512×512, inference, against {title}', speedups, 'at least', required)


def against_softmax(bench: Bench) -> Iterator[Row]:
    inline, fused, naive = InLineDeiT('tiny').eval(), softmax_deit_tiny().eval(), softmax_deit_tiny().eval()
    naive.load_state_dict(fused.state_dict())
    for block in naive.blocks:
        mixer = NaiveSoftmaxMixer(DEIT_TINY.embed_dims, DEIT_TINY.num_heads)
        mixer.load_state_dict(block.mixer.state_dict())
        block.mixer = mixer.eval()
    for model in (inline, fused, naive):
        model.to(bench.device)
    with torch.inference_mode():
        small = bench.image(224)
        compare('DeiT-T with SDPA and naive softmax', fused(small)[-1], naive(small)[-1], 1e-3)
    for size, peers in ((224, {'SDPA': (fused, 1.0)}), (1024, {'SDPA': (fused, 3.6), 'naive': (naive, 9.0)})):
        image = bench.image(size)
        runs = {name: make_inference(model, image) for name, (model, _) in peers.items()}
        # Small images are fast: more repetitions are affordable.
        timings = bench.time({'ours': make_inference(inline, image), **runs}, 5 if size < 512 else 1)
        for name, (_, required) in peers.items():
            comparison = f'DeiT-T at {size}×{size}, inference, against {name} softmax with 3 heads'
            yield Row(comparison, timings['ours'].speedups(timings[name]), 'at least', required)


def compiled_against_softmax(bench: Bench) -> Iterator[Row]:
    """Both compiled for the size of the image."""
    image = bench.image(224)
    models = {'ours': InLineDeiT('tiny'), 'SDPA': softmax_deit_tiny()}
    runs = {
        name: make_inference(torch.compile(model.to(bench.device).eval(), fullgraph=True), image)
        for name, model in models.items()
    }
    timings = bench.time(runs, 5)
    comparison = 'DeiT-T at 224×224, compiled, inference, against compiled SDPA softmax with 3 heads'
    yield Row(comparison, timings['ours'].speedups(timings['SDPA']), 'at least', 1.0)


def half_precision(bench: Bench) -> Iterator[Row]:
    for size in (224, 512):
        image = bench.image(size)
        for name, build in MODELS.items():
            model = build().to(bench.device).eval()
            runs = {dtype: make_inference(model, image, dtype) for dtype in ('bfloat16', 'float32')}
            timings = bench.time(runs)
            comparison = f'{name} at {size}×{size}, inference with bfloat16 autocast, against float32'
            yield Row(comparison, timings['bfloat16'].speedups(timings['float32']), 'at least', 1.0)


def growth(bench: Bench) -> Iterator[Row]:
    for name, build in ALL_INLINE.items():
        model = build().to(bench.device).eval()
        timings = bench.time({str(size): make_inference(model, bench.image(size)) for size in (512, 1024)})
        comparison = f'time of {name}, from 512×512 to 1024×1024'
        yield Row(comparison, timings['512'].speedups(timings['1024']), 'at most', 4.4)


def training_memory(bench: Bench) -> Iterator[Row]:
    image = bench.image(512)
    peaks = []
    for model in (InLinePVT('small'), use_plain(InLinePVT('small'))):
        model.to(bench.device)
        weights = sum(parameter.nbytes for parameter in model.parameters())
        peaks.append(weights + peak_memory(partial(_train_step, model, image), bench.device))
    comparison = 'peak memory of a training step of PVT-S at 512×512, against plain'
    yield Row(comparison, [peaks[0] / peaks[1]], 'at most', 0.9)


def _train_step(model: nn.Module, image: Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    sum(out.square().mean() for out in model(image)).backward()
    optimizer.step()


def _repetition_factor(shape: Shape) -> int:
    """Return the factor for the repetitions of a shape. Small shapes have noisier times and need more."""
    return max(1, round(math.sqrt(2**24 / (shape.tokens * shape.dim**2))))


def machine(bench: Bench) -> Iterator[Row]:
    """Measure the peak compute and memory rates of the machine, as a reference for the other numbers."""
    matrix = torch.randn(MATRIX, MATRIX, device=bench.device)
    block = torch.ones(BLOCK // 4, device=bench.device)
    product, copied = torch.empty_like(matrix), torch.empty_like(block)
    timings = bench.time(
        {'product': lambda: torch.mm(matrix, matrix, out=product), 'copy': lambda: copied.copy_(block)}
    )
    rates = [2 * MATRIX**3 / seconds / 1e9 for seconds in timings['product'].seconds]
    yield Row(f'the machine itself, GFLOP/s: product of matrices of {MATRIX}×{MATRIX}', rates)
    rates = [2 * BLOCK / seconds / 1e9 for seconds in timings['copy'].seconds]
    yield Row(f'the machine itself, GB/s read and written: copy of {BLOCK // 2**20} MB', rates)


def _mean_by_round(speedups: Sequence[Sequence[float]], rounds: int) -> list[float]:
    """Return the geometric mean over shapes in each round.

    Shapes with a multiple of `rounds` repetitions contribute the median of their repetitions per round.
    """
    return [
        statistics.geometric_mean(statistics.median(ratios[i::rounds]) for ratios in speedups)
        for i in range(rounds)
    ]


MEASUREMENTS = {
    'modules': modules,
    'backbones': backbones,
    'softmax': against_softmax,
    'compiled': compiled_against_softmax,
    'bfloat16': half_precision,
    'growth': growth,
    'memory': training_memory,
    'machine': machine,
}


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument(
        'what',
        nargs='*',
        default=list(MEASUREMENTS),
        help=f'measurements to run, of {", ".join(MEASUREMENTS)} (default: all)',
    )
    add_timing_flags(parser, repetitions=9)
    parser.add_argument(
        '--cpu-time',
        action='store_true',
        help='measure CPU time instead of wall time: for one thread on a busy machine',
    )
    args = parser.parse_args()
    check_counts(args)
    for name in args.what:
        check_choice('unknown measurement', name, MEASUREMENTS)
    device = choose_device(args.device)
    if args.cpu_time and device.type == 'cuda':
        raise UserError('--cpu-time needs --device cpu')
    prepare_for_timing(args.threads)
    torch.manual_seed(0)
    clock = time.process_time if args.cpu_time else time.perf_counter
    bench = Bench(device, args.repetitions, clock)
    writer = csv.writer(sys.stdout, lineterminator='\n')
    writer.writerow(COLUMNS)
    clock_name = 'cpu' if args.cpu_time else 'wall'
    provenance = (describe_machine(device), describe_commit(), date.today().isoformat())
    settings = (args.threads, 'float32', clock_name, *provenance)
    for name in args.what:
        for row in MEASUREMENTS[name](bench):
            writer.writerow([*row.cells(), *settings])
            sys.stdout.flush()


if __name__ == '__main__':
    with exit_on_user_error():
        main()
