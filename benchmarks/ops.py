"""Time the attention modules of all four families against each other.

For each shape of a family's blocks at the given image sizes, InLine, its plain formulation, fused and naive
softmax and the baselines are timed alternately: the forward pass, and forward with backward. A module whose
outputs or gradients disagree with its reference is not timed.

    python -m benchmarks.ops --sizes 224 512 --peers InLine Plain SDPA
"""

import csv
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.checks import check
from benchmarks.plain import to_plain
from inline.benchmark import Timing, describe_machine, interleave, peak_memory, prepare_for_timing
from inline.benchmark.figure5 import DEIT_TINY, PVT_HEADS
from inline.benchmark.hardware import add_timing_flags, check_counts, choose_device
from inline.models.backbones.common import MIN_SIZE
from inline.models.backbones.cswin import ARCHS as CSWIN
from inline.models.backbones.deit import ARCHS as DEIT
from inline.models.backbones.pvt import ARCHS as PVT
from inline.models.backbones.swin import ARCHS as SWIN
from inline.models.mixers import MIXERS, AttentionInputs, InLineMixer, SoftmaxMixer, build_mixer, merge_heads
from inline.ops import softmax_attention_naive
from inline.utils.arguments import parse_size
from inline.utils.errors import OneLineParser, exit_on_user_error

DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}
# Largest number of softmax weights for naive softmax. Above it, SDPA is timed with few repetitions.
MAX_SCORES, FEW_REPETITIONS = 2**27, 3
TOLERANCES = {'float32': 1e-4, 'bfloat16': 5e-2, 'float16': 1e-2}
SIZES = ((224, 224), (512, 512), (800, 1280))
BASELINES = tuple(name for name in sorted(MIXERS) if name not in ('InLine', 'Softmax'))
SOFTMAX_PEERS = ('SDPA', 'Naive softmax')
PEERS = ('InLine', 'Plain', *SOFTMAX_PEERS, *BASELINES)
FAMILIES = ('DeiT', 'PVT', 'Swin', 'CSwin')
COLUMNS = ('family', 'image', 'stage', 'tokens', 'channels', 'heads', 'pass', 'peer', 'median ms',
           'spread', 'repetitions', 'speedup of InLine', 'peak MB', 'batch', 'threads', 'dtype',
           'machine')  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Input shape of the InLine mixers in one stage of a family, for one image size (height, width).

    Softmax peers have the heads of the family's softmax model (`softmax_heads`), all others those of InLine.
    """

    family: str
    image: tuple[int, int]
    stage: int
    dim: int
    num_heads: int
    softmax_heads: int
    hw: tuple[int, int]
    prefix: int = 0

    @property
    def size(self) -> str:
        return f'{self.image[0]}x{self.image[1]}'

    @property
    def tokens(self) -> int:
        return self.prefix + self.hw[0] * self.hw[1]

    def heads(self, peer: str) -> int:
        return self.softmax_heads if peer in SOFTMAX_PEERS else self.num_heads

    def scores(self, batch: int) -> int:
        """Return the number of softmax weights."""
        return batch * self.softmax_heads * self.tokens**2

    def mixer(self) -> InLineMixer:
        if self.family == 'CSwin':
            return InLineMixer(self.dim, self.num_heads, mean_before_norm=True, lepe=True)
        return InLineMixer(self.dim, self.num_heads)


class NaiveSoftmaxMixer(SoftmaxMixer):
    """Softmax attention with explicit weights."""

    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(softmax_attention_naive(*inputs.heads()))


def shapes(sizes: tuple[tuple[int, int], ...] = SIZES) -> Iterator[Shape]:
    """Yield the shapes of the InLine stages of the smallest model of each family."""
    for image in sizes:
        deit = DEIT['tiny']
        hw = _map_size(image, deit.patch_size)
        yield Shape('DeiT', image, 0, deit.embed_dims, deit.num_heads, DEIT_TINY.num_heads, hw, prefix=1)
        for family, arch in (('PVT', PVT['tiny']), ('Swin', SWIN['tiny']), ('CSwin', CSWIN['tiny'])):
            for stage, depth in enumerate(arch.inline_depths or arch.depths):
                if depth:
                    hw = _map_size(image, 4 * 2**stage)
                    heads = arch.num_heads[stage]
                    softmax_heads = PVT_HEADS[stage] if family == 'PVT' else heads
                    yield Shape(family, image, stage, arch.embed_dims[stage], heads, softmax_heads, hw)


def _map_size(image: tuple[int, int], stride: int) -> tuple[int, int]:
    return math.ceil(image[0] / stride), math.ceil(image[1] / stride)


def build_peers(
    shape: Shape, names: tuple[str, ...], x: Tensor, max_scores: int = MAX_SCORES
) -> dict[str, nn.Module]:
    """Build the modules of these names for tokens x (B, N, C), with the device and dtype of x.

    Naive softmax is skipped above `max_scores` weights, which would need too much memory.
    """
    torch.manual_seed(0)
    inline = shape.mixer()
    softmax = SoftmaxMixer(shape.dim, shape.softmax_heads)
    peers: dict[str, nn.Module] = {'InLine': inline, 'Plain': to_plain(inline), 'SDPA': softmax}
    if shape.scores(len(x)) <= max_scores:
        naive = NaiveSoftmaxMixer(shape.dim, shape.softmax_heads)
        naive.load_state_dict(softmax.state_dict())
        peers['Naive softmax'] = naive
    peers.update(
        (name, build_mixer({'type': name}, shape.dim, shape.num_heads)) for name in names if name in BASELINES
    )
    return {name: peers[name].to(x) for name in names if name in peers}


def forward(module: nn.Module, x: Tensor, hw: tuple[int, int]) -> None:
    with torch.no_grad():
        module(x, hw, x)


def forward_backward(module: nn.Module, x: Tensor, hw: tuple[int, int], grad_output: Tensor) -> None:
    leaf = x.detach().requires_grad_()
    torch.autograd.grad(module(leaf, hw, leaf), [leaf, *module.parameters()], grad_output)


PASSES: dict[str, Callable[[nn.Module, Tensor, tuple[int, int]], Callable[[], None]]] = {
    'forward': lambda module, x, hw: partial(forward, module, x, hw),
    'forward+backward': lambda module, x, hw: partial(forward_backward, module, x, hw, torch.ones_like(x)),
}


def time_shape(
    shape: Shape,
    names: tuple[str, ...],
    *,
    device: torch.device,
    dtype: str,
    batch: int,
    repetitions: int,
    max_scores: int,
) -> Iterator[tuple[str, str, Timing, float, int]]:
    """Yield pass, peer, timing, speedup of InLine over the peer, and peak memory."""
    x = torch.randn(batch, shape.tokens, shape.dim, dtype=DTYPES[dtype], device=device)
    peers = build_peers(shape, names, x, max_scores)
    if shape.scores(batch) > max_scores:
        where = f'{shape.family}, stage {shape.stage}, {shape.size}: more weights than --max-scores'
        for name in set(names) - set(peers):
            print(f'{where}, {name} is skipped', file=sys.stderr, flush=True)
        if 'SDPA' in peers and repetitions > FEW_REPETITIONS:
            repetitions = FEW_REPETITIONS
            print(f'{where}, {FEW_REPETITIONS} repetitions because of SDPA', file=sys.stderr, flush=True)
    check(peers, x, shape.hw, TOLERANCES[dtype])
    for pass_name, make in PASSES.items():
        runs = {name: make(peer, x, shape.hw) for name, peer in peers.items()}
        timings = interleave(runs, repetitions, device)
        for name, timing in timings.items():
            peak = peak_memory(runs[name], device)
            yield pass_name, name, timing, timings['InLine'].speedup(timing), peak


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('--sizes', nargs='+', default=['224', '512', '800x1280'], metavar='SIZE|HxW')
    parser.add_argument(
        '--families',
        nargs='+',
        default=list(FAMILIES),
        choices=FAMILIES,
        metavar='FAMILY',
        help=f'of {", ".join(FAMILIES)} (default: all)',
    )
    parser.add_argument(
        '--peers',
        nargs='+',
        default=list(PEERS),
        choices=PEERS,
        metavar='PEER',
        help=f'of {", ".join(PEERS)} (default: all); softmax has the heads of the published softmax model, '
        '3 in DeiT-T and 1, 2, 5, 8 in PVT; the others have those of InLine',
    )
    parser.add_argument('--dtype', choices=DTYPES, default='float32')
    parser.add_argument('--batch', type=int, default=1)
    add_timing_flags(parser, repetitions=9)
    parser.add_argument(
        '--max-scores',
        type=int,
        default=MAX_SCORES,
        help='softmax weights above which naive softmax is skipped, and shapes with SDPA are timed '
        f'{FEW_REPETITIONS} times only (default: 2^27)',
    )
    args = parser.parse_args()
    check_counts(args)
    device = choose_device(args.device)
    prepare_for_timing(args.threads)
    names = ('InLine', *(name for name in args.peers if name != 'InLine'))
    sizes = tuple(parse_size('--sizes', size, MIN_SIZE) for size in args.sizes)
    writer = csv.writer(sys.stdout, lineterminator='\n')
    writer.writerow(COLUMNS)
    for shape in shapes(sizes):
        if shape.family not in args.families:
            continue
        timed = time_shape(
            shape,
            names,
            device=device,
            dtype=args.dtype,
            batch=args.batch,
            repetitions=args.repetitions,
            max_scores=args.max_scores,
        )
        for pass_name, name, timing, speedup, peak in timed:
            columns = (shape.family, shape.size, shape.stage, shape.tokens, shape.dim, shape.heads(name))
            times = (f'{timing.median * 1e3:.3f}', f'{timing.spread:.2f}', len(timing.seconds))
            ratios = (f'{speedup:.2f}', f'{peak / 2**20:.1f}')
            settings = (args.batch, args.threads, args.dtype, describe_machine(device))
            writer.writerow([*columns, pass_name, name, *times, *ratios, *settings])
            sys.stdout.flush()


if __name__ == '__main__':
    with exit_on_user_error():
        main()
