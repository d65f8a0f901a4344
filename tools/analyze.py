#!/usr/bin/env python
"""Measure what attention does in trained models: injectivity, locality, masking, and maps to look at.

Each command writes a CSV and a figure and prints a small table. docs/analysis.md says what is measured.
"""

import argparse
from pathlib import Path

from inline.compat import prepare
from inline.engine.flags import add_cfg_options, add_data_root
from inline.errors import OneLineParser, exit_on_user_error

OUT = Path('work_dirs/analysis')


def main() -> None:
    args = parse_args()
    prepare()
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
    commands.add_parser(
        'illustration',
        help='four queries of one direction under linear attention, softmax and InLine',
        description='Draw the weights that four queries of one direction but different length get from '
        'linear attention, softmax and InLine. Needs no model and no data.',
    )
    injectivity = commands.add_parser(
        'injectivity',
        help='count pairs of queries with nearly the same weights',
        description='Count, for every image, layer and head, the pairs of queries whose attention weights '
        'differ by less than a tolerance in L2 norm.',
    )
    injectivity.add_argument(
        '--tolerance', type=float, default=1e-3, help='L2 distance below which two collide (default: 1e-3)'
    )
    locality = commands.add_parser(
        'locality',
        help='share of attention on the 3×3 neighbourhood',
        description='Measure in every layer the share of attention on the 3×3 neighbourhood of a query, '
        'beside what chance gives.',
    )
    masking = commands.add_parser(
        'masking',
        help='accuracy without the keys near each query, or without random ones',
        description='Measure the accuracy of classifiers whose queries are denied the keys of a window '
        'around them, or as many random keys.',
    )
    masking.add_argument(
        '--windows',
        type=int,
        nargs='+',
        default=[3, 5, 7],
        metavar='SIDE',
        help='sides of the windows, odd numbers (default: 3 5 7)',
    )
    maps = commands.add_parser(
        'maps',
        help='draw what chosen queries attend to in one image',
        description='Draw what chosen queries of an image attend to, layer by layer, and the 3×3 kernels of '
        'the local residual.',
    )
    # Pairs of queries take seconds an image on large maps: the bar should move with each.
    add_comparison(injectivity, images=100, batch_size=1)
    add_comparison(locality, images=100, batch_size=8)
    add_comparison(masking, images=None, batch_size=8)
    add_picture(maps)
    for command in (injectivity, locality, masking, maps):
        add_model_options(command)
    for command in commands.choices.values():
        command.add_argument('--out', type=Path, default=OUT, help='folder to write (default: %(default)s)')
    return parser.parse_args()


def add_comparison(parser: argparse.ArgumentParser, images: int | None, batch_size: int) -> None:
    """Arguments of a measurement on the test data of one model or more."""
    parser.usage = f'{parser.prog} CONFIG CHECKPOINT [CONFIG CHECKPOINT ...] [options]'
    parser.add_argument(
        'models',
        nargs='+',
        metavar='CONFIG CHECKPOINT',
        help='config and checkpoint of each model to compare',
    )
    parser.add_argument(
        '--label', nargs='+', metavar='NAME', help='what each model is called (default: its config’s name)'
    )
    parser.add_argument(
        '--images',
        type=int,
        default=images,
        metavar='N',
        help=f'how many images of the test data, drawn by the seed (default: {images or "all"})',
    )
    parser.add_argument(
        '--batch-size',
        type=int,
        default=batch_size,
        metavar='N',
        help='images at once, but no more than the config’s test_dataloader has (default: %(default)s)',
    )
    parser.add_argument('--seed', type=int, default=0, help='seed of all that is drawn (default: 0)')
    add_data_root(parser)


def add_picture(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('image', help='image file; it passes the config’s test pipeline')
    parser.add_argument(
        '--query',
        type=int,
        nargs=2,
        action='append',
        metavar=('Y', 'X'),
        help='row and column of a pixel of the image as the model sees it; may be repeated '
        '(default: the centre)',
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--layers',
        nargs='+',
        metavar='LAYER',
        help='layers to look at: stage.block such as 1.2, or the block of a DeiT (default: all)',
    )
    add_cfg_options(parser)


if __name__ == '__main__':
    with exit_on_user_error():
        main()
