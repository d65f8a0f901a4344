"""Analyse the attention of trained models: injectivity, locality, masking and attention maps.

Each command writes a CSV file and a figure and prints a table. docs/analysis.md defines the measurements.
"""

import argparse
from pathlib import Path

from inline.engine.flags import add_cfg_options, add_data_root
from inline.openmmlab.patches import apply_patches, read_data_files_safely
from inline.utils.errors import OneLineParser

OUT = Path('work_dirs/analysis')
COMMANDS = {
    'illustration': 'Draw Figure 1 of the paper: the attention weights of four queries that differ only in '
    'length after the kernel, under linear, softmax and InLine attention. Needs no model and no data.',
    'injectivity': 'Count the query pairs per image, layer and head whose attention weights differ by less '
    'than a tolerance in L2 norm.',
    'locality': 'Measure the share of attention on the 3×3 neighbourhood of a query in each layer, compared '
    'with uniform weights (chance).',
    'masking': 'Measure the accuracy of classifiers when the keys in a window around each query, or as many '
    'random keys, are masked.',
    'maps': 'Draw the attention maps of chosen queries of an image in each layer, and the 3×3 kernels of the '
    'local residual.',
}


def main() -> None:
    args = parse_args()
    apply_patches()
    read_data_files_safely()
    from inline.analysis import commands

    run = {
        'illustration': commands.run_illustration,
        'injectivity': commands.run_injectivity,
        'locality': commands.run_locality,
        'masking': commands.run_masking,
        'maps': commands.run_maps,
    }
    run[args.command](args)


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, description=text)
    injectivity, locality, masking, maps = (
        commands.choices[name] for name in ('injectivity', 'locality', 'masking', 'maps')
    )
    injectivity.add_argument(
        '--tolerance',
        type=float,
        default=1e-3,
        help='L2 distance below which two queries collide (default: 1e-3)',
    )
    masking.add_argument(
        '--windows',
        type=int,
        nargs='+',
        default=[3, 5, 7],
        metavar='SIDE',
        help='sides of the masked windows, odd numbers (default: 3 5 7)',
    )
    # Injectivity takes seconds per image on large maps: batches of 1 keep the progress bar moving.
    add_comparison_args(injectivity, images=100, batch_size=1)
    add_comparison_args(locality, images=100, batch_size=8)
    add_comparison_args(masking, images=None, batch_size=8)
    add_image_args(maps)
    for command in (injectivity, locality, masking, maps):
        add_model_args(command)
    for command in commands.choices.values():
        command.add_argument('--out', type=Path, default=OUT, help='output folder (default: %(default)s)')
    return parser.parse_args()


def add_comparison_args(parser: argparse.ArgumentParser, images: int | None, batch_size: int) -> None:
    """Add the arguments of a measurement on the test data of one or more models."""
    parser.usage = f'{parser.prog} CONFIG CHECKPOINT [CONFIG CHECKPOINT ...] [options]'
    parser.add_argument(
        'models',
        nargs='+',
        metavar='CONFIG CHECKPOINT',
        help='config and checkpoint of each model to compare',
    )
    parser.add_argument(
        '--label', nargs='+', metavar='NAME', help='label of each model (default: the name of its config)'
    )
    parser.add_argument(
        '--images',
        type=int,
        default=images,
        metavar='N',
        help=f'number of random images of the test data (default: {images or "all"})',
    )
    parser.add_argument(
        '--batch-size',
        type=int,
        default=batch_size,
        metavar='N',
        help="batch size, at most that of the config's test_dataloader (default: %(default)s)",
    )
    parser.add_argument('--seed', type=int, default=0, help='random seed (default: 0)')
    add_data_root(parser)


def add_image_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('config', help='config file, or the name of a file in configs/')
    parser.add_argument('checkpoint', help='checkpoint: file, folder, URL or USER/MODEL on the Hub')
    parser.add_argument('image', help="image file; the config's test pipeline is applied to it")
    parser.add_argument(
        '--query',
        type=int,
        nargs=2,
        action='append',
        metavar=('Y', 'X'),
        help='row and column of a pixel after the test pipeline; may be repeated (default: the centre)',
    )


def add_model_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--layers',
        nargs='+',
        metavar='LAYER',
        help='layers to analyse: stage.block such as 1.2, or the block of a DeiT (default: all)',
    )
    add_cfg_options(parser)
