#!/usr/bin/env python
"""Time inference: latency, throughput and peak memory of a config's model, or of all released models.

python tools/benchmark.py CONFIG --shape 512 512 --batch 4
python tools/benchmark.py --models inline-deit-tiny inline-pvt-tiny
python tools/benchmark.py --figure5 work_dirs/figure5
"""

import csv
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor, nn

from inline.compat import prepare
from inline.errors import OneLineParser, UserError, exit_on_user_error
from inline.measure import describe_machine, prepare_for_timing
from inline.measure.flags import add_timing_flags, check_counts
from inline.measure.machine import choose_device
from inline.measure.models import DTYPES, Settings, measure
from inline.whole_files import make_folder

ACCURACIES = Path(__file__).resolve().parents[1] / 'results' / 'paper' / 'imagenet.csv'
COLUMNS = ('model', 'height', 'width', 'latency ms', 'spread', 'images/s', 'batch', 'peak MB',
           'threads', 'dtype', 'machine')  # fmt: skip
# Its name, the model, height and width of the image.
Model = tuple[str, nn.Module, tuple[int, int]]


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('config', nargs='?', help='config file; without it the released models are timed')
    parser.add_argument('--models', nargs='+', metavar='NAME', help='which released models (default: all)')
    parser.add_argument('--shape', type=int, nargs=2, metavar=('H', 'W'), help='size of the image')
    parser.add_argument('--batch', type=int, default=1, help='images at once for the throughput (default: 1)')
    parser.add_argument('--dtype', choices=DTYPES, default='float32', help='half precision is autocast’s')
    add_timing_flags(parser, repetitions=7)
    parser.add_argument('--figure5', type=Path, metavar='FOLDER', help='write figure5.csv and figure5.png')
    args = parser.parse_args()
    check(args)
    prepare_for_timing(args.threads)
    settings = Settings(args.batch, args.repetitions, args.dtype, choose_device(args.device))
    if args.figure5 is not None:
        make_figure5(args.figure5, settings, args.threads)
        return
    prepare()
    models: Iterable[Model] = [from_config(args)] if args.config else released(args)
    machine = describe_machine(settings.device)
    writer = csv.writer(sys.stdout, lineterminator='\n')
    writer.writerow(COLUMNS)
    for name, model, shape in models:
        speed = measure({name: (model, shape)}, settings)[name]
        latency = f'{speed.latency.median * 1e3:.1f}', f'{speed.latency.spread:.2f}'
        throughput = f'{speed.images_per_second:.2f}', args.batch, f'{speed.peak_bytes / 2**20:.0f}'
        writer.writerow([name, *shape, *latency, *throughput, args.threads, args.dtype, machine])
        sys.stdout.flush()


def check(args: Namespace) -> None:
    check_counts(args)
    if args.shape is not None and min(args.shape) < 32:
        raise UserError(f'--shape {args.shape[0]} {args.shape[1]}: each side must be at least 32')


class Runnable(nn.Module):
    """A toolbox's model that takes images alone."""

    def __init__(self, args: Namespace, shape: tuple[int, int]) -> None:
        from inline.engine.complexity import build_runnable
        from inline.engine.config import load_config

        super().__init__()
        self.model, self.run = build_runnable(load_config(args.config, {}), shape)

    def forward(self, image: Tensor) -> object:
        return self.run(image)


def from_config(args: Namespace) -> Model:
    from inline.engine.complexity import usual_shape
    from inline.engine.config import load_config

    cfg = load_config(args.config, {})
    shape = tuple(args.shape or usual_shape(cfg))
    return Path(args.config).stem, Runnable(args, shape), shape


def released(args: Namespace) -> Iterator[Model]:
    from inline.official.catalogue import OFFICIAL, find_official

    models = [find_official(name) for name in args.models or OFFICIAL]
    # Built one after another, so that the device holds one at a time.
    return (
        (model.name, model.build(), tuple(args.shape or (model.img_size, model.img_size))) for model in models
    )


def make_figure5(folder: Path, settings: Settings, threads: int) -> None:
    from inline.measure.figure5 import draw_figure5, measure_figure5, write_points

    make_folder('--figure5', folder)
    conditions = (
        f'{describe_machine(settings.device)}; threads: {threads}, {settings.dtype}, batch: {settings.batch}'
    )
    points = []
    for point in measure_figure5(ACCURACIES, settings, conditions):
        print(f'({point.panel}) {point.family} {point.attention} {point.setting}: {point.milliseconds} ms')
        points.append(point)
    write_points(points, folder / 'figure5.csv')
    draw_figure5(points, folder / 'figure5.png')


if __name__ == '__main__':
    with exit_on_user_error():
        main()
