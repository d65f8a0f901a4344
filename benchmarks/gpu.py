"""Time InLine on a GPU: eager, compiled and Triton, against fused softmax and flash-linear-attention.

    python -m benchmarks.gpu --sizes 224 512 1024 --dtypes bfloat16

For each shape of a family's blocks, the local residual alone and the whole attention module are timed: the
forward pass, and forward with backward. Implementations run alternately between CUDA events. One whose
outputs or gradients disagree with a reference is reported and not timed. Rows are added to
results/measured/gpu.csv, and `python tools/update_readme.py` renders them in docs/speed.md.

--device cpu is for a quick test of the script: it prints the rows and writes no file unless --out is given.
"""

import csv
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.checks import CHECK_MAP, compare
from benchmarks.ops import DTYPES, FAMILIES, TOLERANCES, NaiveSoftmaxMixer, Shape, shapes
from benchmarks.plain import to_plain
from inline.benchmark import describe_machine, interleave, peak_memory, prepare_for_timing
from inline.benchmark.hardware import check_counts, choose_device
from inline.benchmark.timing import Run
from inline.models.backbones.common import MIN_SIZE
from inline.models.mixers import SoftmaxMixer
from inline.ops import local_residual, use_triton
from inline.utils.arguments import check_positive, parse_size
from inline.utils.environment import describe_commit
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error
from inline.utils.tables import read_csv, write_csv

RESULTS = Path(__file__).resolve().parents[1] / 'results' / 'measured' / 'gpu.csv'
# InLine in four ways, softmax in two, and causal linear attention of flash-linear-attention.
IMPLEMENTATIONS = ('eager', 'compiled', 'triton', 'triton-compiled', 'sdpa', 'sdpa-compiled', 'fla')
ON_CPU = ('eager', 'compiled', 'sdpa', 'sdpa-compiled')
SUBJECTS = ('residual', 'module')
PACKAGES = ('torch', 'triton', 'flash-linear-attention')
# Columns that identify a measurement; a new one replaces the old.
KEYS = (
    'what',
    'family',
    'image',
    'tokens',
    'channels',
    'pass',
    'dtype',
    'batch',
    'machine',
    'implementation',
)
COLUMNS = (*KEYS, 'median ms', 'spread', 'speedup over eager', 'peak MB', 'repetitions', 'commit', 'versions',
           'date')  # fmt: skip
Row = Mapping[str, Any]


class LocalResidual(nn.Module):
    """The local residual with random kernels, (C, 9) for each of `batch` images."""

    def __init__(self, batch: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(batch, dim, 9))

    def forward(self, x: Tensor, hw: tuple[int, int], _: Tensor) -> Tensor:
        return local_residual(x, self.weight, hw)


class CausalLinearMixer(nn.Module):
    """Linear attention of flash-linear-attention between the projections of a mixer; `attend` computes it.

    It is causal and not normalised, which costs the same as the bidirectional form or a little more.
    """

    def __init__(self, dim: int, num_heads: int, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.attend = attend

    def forward(self, x: Tensor, *_: object) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        return self.proj(self.attend(q, k, v).flatten(2))


def attend_fla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Tokens before heads: (B, N, heads, d)."""
    module = importlib.import_module('fla.ops.linear_attn')
    out, _ = module.chunk_linear_attn(q, k, v, normalize=False)
    return out


def attend_causal_naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum('bnhd,bmhd->bhnm', q, k).tril() * q.shape[-1] ** -0.5
    return torch.einsum('bhnm,bmhd->bnhd', scores, v)


@dataclass(frozen=True)
class Peer:
    """An implementation and its reference.

    Args:
        module: Called with tokens, the size of the map, and the tokens before the norm.
        reference: A float32 module that computes the same.
        triton: Whether to turn Triton kernels on.
        small: Whether the reference needs N×N weights, so that both are compared on a small map only.
    """

    module: nn.Module
    reference: nn.Module
    triton: bool = False
    small: bool = False


def build_peers(shape: Shape, what: str, names: Iterable[str], x: Tensor, backend: str) -> dict[str, Peer]:
    """Build the named implementations that exist for `what`, with the device and dtype of tokens x."""
    # The compiler keeps a limited number of programs per function.
    torch.compiler.reset()
    torch.manual_seed(0)

    def compiled(module: nn.Module) -> nn.Module:
        return torch.compile(module, fullgraph=True, dynamic=False, backend=backend)  # type: ignore[return-value]

    ours: nn.Module = LocalResidual(len(x), shape.dim) if what == 'residual' else shape.mixer()
    reference = LocalResidual(len(x), shape.dim) if what == 'residual' else to_plain(ours)  # type: ignore[arg-type]
    softmax, naive = (cls(shape.dim, shape.softmax_heads) for cls in (SoftmaxMixer, NaiveSoftmaxMixer))
    causal = CausalLinearMixer(shape.dim, shape.num_heads, attend_fla)
    causal_naive = CausalLinearMixer(shape.dim, shape.num_heads, attend_causal_naive)
    for module, naive_module in ((ours, reference), (softmax, naive), (causal, causal_naive)):
        module.to(x)
        # Rounded to the dtype of x first.
        naive_module.load_state_dict(module.state_dict())
        naive_module.to(x.device)
    peers = {
        'eager': Peer(ours, reference),
        'compiled': Peer(compiled(ours), reference),
        'triton': Peer(ours, reference, triton=True),
        'triton-compiled': Peer(compiled(ours), reference, triton=True),
    }
    if what == 'module':
        peers['sdpa'] = Peer(softmax, naive, small=True)
        peers['sdpa-compiled'] = Peer(compiled(softmax), naive, small=True)
        peers['fla'] = Peer(causal, causal_naive, small=True)
    return {name: peers[name] for name in names if name in peers}


def check_peer(name: str, peer: Peer, x: Tensor, shape: Shape, tolerance: float) -> None:
    """Raise a UserError if outputs or gradients disagree with those of the reference in float32."""
    hw = shape.hw
    if peer.small:
        hw = (min(hw[0], CHECK_MAP[0]), min(hw[1], CHECK_MAP[1]))
        x = x[:2, : shape.prefix + hw[0] * hw[1]]
    found = with_triton(peer.triton, lambda: outputs_and_gradients(peer.module, x, hw))()
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected = outputs_and_gradients(peer.reference, x.float(), hw)
    for suffix, tensor in found.items():
        compare(f'{name} and its reference{suffix}', tensor.float(), expected[suffix], tolerance)


def outputs_and_gradients(module: nn.Module, x: Tensor, hw: tuple[int, int]) -> dict[str, Tensor]:
    leaf = x.detach().requires_grad_()
    out = module(leaf, hw, leaf)
    parameters = [parameter for _, parameter in sorted(module.named_parameters())]
    token_gradient, *gradients = torch.autograd.grad(out, [leaf, *parameters], cotangent(out))
    return {
        '': out.detach(),
        ', gradients of tokens,': token_gradient,
        ', gradients of weights,': torch.cat([gradient.flatten() for gradient in gradients]),
    }


def cotangent(out: Tensor) -> Tensor:
    """Return a random output gradient, the same for every dtype up to rounding."""
    values = torch.randn(out.shape, generator=torch.Generator(out.device).manual_seed(0), device=out.device)
    return values.to(out.dtype)


def with_triton(enabled: bool, run: Callable[[], Any]) -> Callable[[], Any]:
    """Return `run` with Triton kernels on or off. Turning them on takes a few microseconds."""
    if not enabled:
        return run

    def wrapped() -> Any:
        use_triton(True)
        try:
            return run()
        finally:
            use_triton(False)

    return wrapped


def make_passes(peer: Peer, x: Tensor, hw: tuple[int, int]) -> dict[str, Run]:
    def forward() -> None:
        with torch.no_grad():
            peer.module(x, hw, x)

    parameters = list(peer.module.parameters())
    tokens = hw[0] * hw[1] if isinstance(peer.reference, LocalResidual) else x.shape[1]
    grad_output = cotangent(x[:, :tokens])

    def forward_backward() -> None:
        leaf = x.detach().requires_grad_()
        torch.autograd.grad(peer.module(leaf, hw, leaf), [leaf, *parameters], grad_output)

    passes: dict[str, Run] = {'forward': forward, 'forward+backward': forward_backward}
    return {name: with_triton(peer.triton, run) for name, run in passes.items()}


@dataclass(frozen=True)
class Settings:
    """Device and repetitions of all measurements, and the backend of torch.compile."""

    device: torch.device
    batch: int
    repetitions: int
    warm_up: int
    backend: str = 'inductor'


def time_shape(
    shape: Shape, what: str, dtype: str, names: Iterable[str], settings: Settings
) -> Iterator[tuple[Row | None, str]]:
    """Yield a row and an empty message per pass and implementation, or no row and why there is none."""
    device = settings.device
    x = torch.randn(settings.batch, shape.tokens, shape.dim, dtype=DTYPES[dtype], device=device)
    peers: dict[str, Peer] = {}
    for name, peer in build_peers(shape, what, names, x, settings.backend).items():
        try:
            check_peer(name, peer, x, shape, TOLERANCES[dtype])
        except (UserError, torch.OutOfMemoryError) as error:
            yield None, str(error).splitlines()[0]
        except Exception as error:
            # Other packages may not support a shape or dtype.
            if name != 'fla':
                raise
            yield None, f'fla fails: {type(error).__name__}: {(str(error).splitlines() or [""])[0]}'
        else:
            peers[name] = peer
    runs = {name: make_passes(peer, x, shape.hw) for name, peer in peers.items()}
    for pass_name in ('forward', 'forward+backward'):
        timings = interleave(
            {name: passes[pass_name] for name, passes in runs.items()},
            settings.repetitions,
            device,
            warm_up=settings.warm_up,
            cuda_events=device.type == 'cuda',
        )
        for name, timing in timings.items():
            yield (
                {
                    'what': what,
                    'family': f'{shape.family}, stage {shape.stage + 1}',
                    'image': shape.size,
                    'tokens': shape.tokens,
                    'channels': shape.dim,
                    'pass': pass_name,
                    'dtype': dtype,
                    'batch': settings.batch,
                    'machine': describe_machine(device),
                    'implementation': name,
                    'median ms': f'{timing.median * 1e3:.4f}',
                    'spread': f'{timing.spread:.2f}',
                    'speedup over eager': f'{timing.speedup(timings["eager"]):.2f}'
                    if 'eager' in timings
                    else '',
                    'peak MB': f'{peak_memory(runs[name][pass_name], device) / 2**20:.1f}',
                    'repetitions': len(timing.seconds),
                },
                '',
            )


def describe_versions() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f'{package} {version(package)}')
        except PackageNotFoundError:
            continue
    return ', '.join(found)


def merge_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a CSV file; a row replaces an older one of the same measurement."""
    merged = {tuple(str(row[key]) for key in KEYS): row for row in (read_csv(path) if path.is_file() else [])}
    merged.update({tuple(str(row[key]) for key in KEYS): row for row in rows})
    write_csv(path, COLUMNS, merged.values())


def check_out(path: Path) -> None:
    """Raise before anything is timed if rows cannot be added to a file."""
    if not path.parent.is_dir():
        raise UserError(f'--out {path}: {path.parent} is not a folder')
    if path.is_file():
        with path.open(newline='') as file:
            if tuple(next(csv.reader(file), ())) != COLUMNS:
                raise UserError(f'--out {path}: has other columns than this benchmark')


def choose_implementations(names: list[str] | None, device: torch.device) -> list[str]:
    """Return the implementations to time, with a line on stderr for those that cannot run."""
    chosen = list(names or (IMPLEMENTATIONS if device.type == 'cuda' else ON_CPU))
    if any(name.startswith('triton') for name in chosen):
        use_triton(True)
        use_triton(False)
    if 'fla' in chosen and importlib.util.find_spec('fla') is None:
        print('fla is skipped: pip install flash-linear-attention', file=sys.stderr)
        chosen.remove('fla')
    if not chosen:
        raise UserError('--implementations: nothing left to time')
    return chosen


def make_parser() -> OneLineParser:
    parser = OneLineParser(description=__doc__.splitlines()[0])

    def add_choices(
        flag: str, choices: Iterable[str], default: Iterable[str] | None, text: str = 'all'
    ) -> None:
        listed = list(choices)
        parser.add_argument(
            flag,
            nargs='+',
            choices=listed,
            default=None if default is None else list(default),
            metavar=flag.strip('-').upper(),
            help=f'of {", ".join(listed)} (default: {text if default is None else " ".join(default)})',
        )

    parser.add_argument('--sizes', nargs='+', default=['224', '512', '1024'], metavar='SIZE|HxW')
    add_choices('--what', SUBJECTS, SUBJECTS)
    add_choices('--families', FAMILIES, ('DeiT', 'PVT'))
    add_choices('--dtypes', DTYPES, ('bfloat16',))
    add_choices('--implementations', IMPLEMENTATIONS, None, 'all; on a CPU those without triton and fla')
    parser.add_argument('--batch', type=int, default=8, help='images (default: %(default)s)')
    parser.add_argument('--repetitions', type=int, default=30, help='timed calls (default: %(default)s)')
    parser.add_argument('--warm-up', type=int, default=5, help='calls before (default: %(default)s)')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda', help='(default: %(default)s)')
    parser.add_argument(
        '--compile-backend', default='inductor', help='backend of torch.compile (default: %(default)s)'
    )
    parser.add_argument(
        '--out', type=Path, help='CSV file to add rows to (default: results/measured/gpu.csv; none on a CPU)'
    )
    return parser


def main() -> int:
    args = make_parser().parse_args()
    check_counts(args)
    check_positive('--warm-up', args.warm_up)
    sizes = tuple(parse_size('--sizes', size, MIN_SIZE) for size in args.sizes)
    device = choose_device(args.device)
    names = choose_implementations(args.implementations, device)
    out = args.out or (RESULTS if device.type == 'cuda' else None)
    if out is not None:
        check_out(out)
    prepare_for_timing(1)
    settings = Settings(device, args.batch, args.repetitions, args.warm_up, args.compile_backend)
    recorded = {
        'commit': describe_commit(),
        'versions': describe_versions(),
        'date': date.today().isoformat(),
    }
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator='\n')
    writer.writeheader()
    problems = 0
    for shape in shapes(sizes):
        if shape.family not in args.families:
            continue
        for what in args.what:
            for dtype in args.dtypes:
                rows = []
                for row, problem in time_shape(shape, what, dtype, names, settings):
                    if row is None:
                        problems += 1
                        where = f'{what} of {shape.family}, stage {shape.stage + 1}, {shape.size}, {dtype}'
                        print(f'{where}: {problem}', file=sys.stderr, flush=True)
                        continue
                    rows.append({**row, **recorded})
                    writer.writerow(rows[-1])
                    sys.stdout.flush()
                if out is not None:
                    merge_rows(out, rows)
    if problems:
        print(f'{problems} implementations were not timed, see above', file=sys.stderr)
    return 1 if problems else 0


if __name__ == '__main__':
    with exit_on_user_error():
        sys.exit(main())
