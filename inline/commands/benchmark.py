"""Measure latency, throughput and peak memory of inference for a config's model or for the released models.

inline benchmark CONFIG --shape 512 512 --batch 4
inline benchmark --models inline-deit-tiny inline-pvt-tiny
inline benchmark --figure5 work_dirs/figure5
inline benchmark --figure5 work_dirs/figure5 --redraw results/measured/figure5.csv
inline benchmark --runtimes --sizes 224 512
inline benchmark --runtimes onnx openvino-bf16 --models PVT-S --figure docs/images/runtimes.png
inline benchmark --resolution work_dirs/resolution
"""

import csv
import math
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from torch import Tensor, nn

from inline.benchmark.hardware import (
    add_timing_flags,
    check_counts,
    choose_device,
    describe_machine,
    prepare_for_timing,
)
from inline.benchmark.timing import AUTOCAST_DTYPES, BenchmarkSettings, measure_inference
from inline.models.backbones.common import MAX_IMAGE, MIN_SIZE
from inline.utils.arguments import check_choice
from inline.utils.atomic import make_folder
from inline.utils.errors import OneLineParser, UserError
from inline.utils.extras import require_extras
from inline.utils.resources import MEASURED_RESULTS, PAPER_RESULTS

COLUMNS = ('model', 'height', 'width', 'latency ms', 'spread', 'images/s', 'batch', 'peak MB',
           'threads', 'dtype', 'machine')  # fmt: skip
# Names of the runtimes on the command line, in the order of inline.benchmark.runtimes.TOLERANCES.
RUNTIME_NAMES = ('eager-bf16', 'compiled', 'onnx', 'openvino', 'openvino-bf16', 'openvino-int8')
# Name, (height, width) of the image, model, and a function to run the model on images if not its forward.
NamedModel = tuple[str, tuple[int, int], nn.Module, Callable[[Tensor], object] | None]


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        'config',
        nargs='?',
        help='config file, or the name of a file in configs/; without it the released models are timed',
    )
    parser.add_argument(
        '--models',
        nargs='+',
        metavar='NAME',
        help='names of released models, or with --runtimes of its models (default: all)',
    )
    parser.add_argument('--shape', type=int, nargs=2, metavar=('H', 'W'), help='image height and width')
    parser.add_argument('--batch', type=int, default=1, help='batch size for the throughput (default: 1)')
    parser.add_argument(
        '--dtype', choices=AUTOCAST_DTYPES, default='float32', help='half precision uses autocast'
    )
    add_timing_flags(parser, repetitions=7)
    parser.add_argument('--figure5', type=Path, metavar='FOLDER', help='write figure5.csv and figure5.png')
    parser.add_argument(
        '--resolution',
        type=Path,
        metavar='FOLDER',
        help='write resolution.csv and resolution.png: time and memory against the size of the image',
    )
    parser.add_argument(
        '--time-limit',
        type=float,
        default=60.0,
        metavar='SECONDS',
        help='with --resolution: longest forward pass (default: 60)',
    )
    parser.add_argument(
        '--memory-limit',
        type=float,
        metavar='GB',
        help='with --resolution: largest process (default: 80 %% of the free memory)',
    )
    parser.add_argument(
        '--runtimes',
        nargs='*',
        metavar='NAME',
        help=f'time deployment runtimes against eager PyTorch: {", ".join(RUNTIME_NAMES)} '
        '(default: all but compiled)',
    )
    parser.add_argument(
        '--sizes',
        type=int,
        nargs='+',
        metavar='SIDE',
        help='with --runtimes (default: 224) or --resolution: sides of the images',
    )
    parser.add_argument(
        '--results',
        type=Path,
        metavar='CSV',
        default=MEASURED_RESULTS / 'runtimes.csv',
        help='with --runtimes: file to append rows to (default: results/measured/runtimes.csv)',
    )
    parser.add_argument(
        '--figure', type=Path, metavar='FILE', help='with --runtimes: draw all rows of --results'
    )
    parser.add_argument(
        '--redraw',
        type=Path,
        metavar='CSV',
        help='with --figure5, --resolution or --figure: draw this CSV file, measure nothing',
    )
    args = parser.parse_args()
    check_counts(args)
    check_flags(args)
    if args.runtimes is not None:
        time_runtimes(args)
        return
    if args.redraw is not None:
        redraw(args)
        return
    if args.resolution is not None:
        make_resolution(args)
        return
    prepare_for_timing(args.threads)
    settings = BenchmarkSettings(args.batch, args.repetitions, args.dtype, choose_device(args.device))
    if args.figure5 is not None:
        make_figure5(args.figure5, settings, args.threads)
        return
    models: Iterable[NamedModel] = [model_from_config(args)] if args.config else released_models(args)
    machine = describe_machine(settings.device)
    writer = csv.writer(sys.stdout, lineterminator='\n')
    writer.writerow(COLUMNS)
    for name, shape, model, forward in models:
        speed = measure_inference(model, shape, settings, forward)
        latency = f'{speed.latency.median * 1e3:.1f}', f'{speed.latency.spread:.2f}'
        throughput = f'{speed.images_per_second:.2f}', args.batch, f'{speed.peak_bytes / 2**20:.0f}'
        writer.writerow([name, *shape, *latency, *throughput, args.threads, args.dtype, machine])
        sys.stdout.flush()


def check_flags(args: Namespace) -> None:
    """Raise for flags that exclude or need others, and for values out of range."""
    if sum(mode is not None for mode in (args.figure5, args.resolution, args.runtimes)) > 1:
        raise UserError('--figure5, --resolution and --runtimes: give only one of them')
    if args.figure is not None and args.runtimes is None:
        raise UserError('--figure needs --runtimes')
    for name in ('time_limit', 'memory_limit'):
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f'--{name.replace("_", "-")} {value}: must be above 0')
    if args.sizes is not None:
        if args.resolution is None and args.runtimes is None:
            raise UserError('--sizes needs --runtimes or --resolution FOLDER')
        if min(args.sizes) < MIN_SIZE or max(args.sizes) > MAX_IMAGE:
            listed = ' '.join(map(str, args.sizes))
            raise UserError(f'--sizes {listed}: each side must be from {MIN_SIZE} to {MAX_IMAGE}')
    if args.shape is not None and min(args.shape) < MIN_SIZE:
        raise UserError(f'--shape {args.shape[0]} {args.shape[1]}: each side must be at least {MIN_SIZE}')


def model_from_config(args: Namespace) -> NamedModel:
    require_extras(f'config {args.config!r}', 'openmmlab')
    from inline.openmmlab.patches import apply_patches

    apply_patches()
    from inline.benchmark.flops import build_runnable, default_shape
    from inline.engine.config import load_config

    cfg = load_config(args.config, {})
    shape = tuple(args.shape or default_shape(cfg))
    return Path(cfg.filename).stem, shape, *build_runnable(cfg, shape)


def released_models(args: Namespace) -> Iterator[NamedModel]:
    from inline.checkpoints.official import OFFICIAL, find_official

    models = [find_official(name) for name in args.models or OFFICIAL]
    # A generator keeps only one model in memory at a time.
    return (
        (model.name, tuple(args.shape or (model.img_size, model.img_size)), model.build(), None)
        for model in models
    )


def time_runtimes(args: Namespace) -> None:
    require_extras('--runtimes', 'openmmlab', 'export')
    from inline.benchmark.runtimes import (
        MODELS,
        TOLERANCES,
        RuntimeSettings,
        draw_runtimes,
        measure_runtimes,
    )

    if args.redraw is not None:
        if args.figure is None:
            raise UserError('--redraw needs --figure FILE, the picture to write')
        draw_runtimes(args.redraw, args.figure)
        return
    names = dict(zip(RUNTIME_NAMES, TOLERANCES, strict=True))
    for name in args.runtimes:
        check_choice('--runtimes', name, names)
    for name in args.models or ():
        check_choice('--models', name, MODELS)
    if args.device == 'cuda':
        raise UserError('--device cuda: --runtimes measures on the CPU')
    settings = RuntimeSettings(
        models=tuple(args.models or MODELS),
        sizes=tuple(args.sizes or (224,)),
        # Compilation takes minutes per model: only if it is named.
        runtimes=tuple(names[name] for name in args.runtimes or names if args.runtimes or name != 'compiled'),
        threads=args.threads,
        repetitions=args.repetitions,
    )
    count = 0
    for row in measure_runtimes(settings, args.results, lambda line: print(line, flush=True)):
        count += bool(row.get('speedup'))
    print(f'{count} rows timed: see {args.results}')
    if args.figure is not None:
        draw_runtimes(args.results, args.figure)
    if not count:
        raise UserError('nothing was timed: the notes in the file say why')


def make_figure5(folder: Path, settings: BenchmarkSettings, threads: int) -> None:
    require_extras('--figure5', 'openmmlab')
    from inline.benchmark.figure5 import draw_figure5, measure_figure5, read_paper_points, write_points

    make_folder('--figure5', folder)
    points = []
    for point in measure_figure5(PAPER_RESULTS / 'imagenet.csv', settings, _conditions(settings, threads)):
        print(f'({point.panel}) {point.family} {point.attention} {point.setting}: {point.milliseconds} ms')
        points.append(point)
    write_points(points, folder / 'figure5.csv')
    draw_figure5(points, read_paper_points(PAPER_RESULTS / 'figure5.csv'), folder / 'figure5.png')


def make_resolution(args: Namespace) -> None:
    require_extras('--resolution', 'openmmlab')
    import psutil

    from inline.benchmark.resolution import (
        SIZES,
        Limits,
        measure_in_process,
        measure_resolutions,
        write_points,
    )
    from inline.benchmark.resolution_figure import draw_resolution

    make_folder('--resolution', args.resolution)
    settings = BenchmarkSettings(args.batch, args.repetitions, args.dtype, choose_device(args.device))
    free = 0.8 * psutil.virtual_memory().available / 2**30
    limits = Limits(args.time_limit, 1024 * (args.memory_limit or free))
    measure = measure_in_process(settings, args.threads)
    points = []
    for point in measure_resolutions(
        args.sizes or SIZES, limits, measure, _conditions(settings, args.threads)
    ):
        points.append(point)
        print(f'{point.attention}, {point.size} pixels: {point.describe()}', flush=True)
        # Kept up to date, because the whole sweep takes minutes.
        write_points(points, args.resolution / 'resolution.csv')
    draw_resolution(points, args.resolution / 'resolution.png')


def redraw(args: Namespace) -> None:
    require_extras('--redraw', 'openmmlab')
    if args.figure5 is None and args.resolution is None:
        raise UserError('--redraw needs --figure5 FOLDER or --resolution FOLDER, the folder for the picture')
    if not args.redraw.is_file():
        raise UserError(f'--redraw {str(args.redraw)!r}: no such file')
    if args.figure5 is not None:
        from inline.benchmark.figure5 import draw_figure5, read_paper_points, read_points

        make_folder('--figure5', args.figure5)
        paper = read_paper_points(PAPER_RESULTS / 'figure5.csv')
        draw_figure5(read_points(args.redraw), paper, args.figure5 / 'figure5.png')
        return
    from inline.benchmark import resolution
    from inline.benchmark.resolution_figure import draw_resolution

    make_folder('--resolution', args.resolution)
    draw_resolution(resolution.read_points(args.redraw), args.resolution / 'resolution.png')


def _conditions(settings: BenchmarkSettings, threads: int) -> str:
    """Return the hardware and the settings in one line."""
    machine = describe_machine(settings.device)
    return f'{machine}; threads: {threads}, {settings.dtype}, batch: {settings.batch}'
