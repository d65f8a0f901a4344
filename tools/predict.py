#!/usr/bin/env python
"""Predict with a trained classifier, detector or segmentor: drawn images and JSON in a folder.

Images may be files or folders, which are searched to the bottom. docs/inference.md says what is written.
"""

import argparse
import signal
from pathlib import Path

from inline.compat import prepare
from inline.engine.flags import add_trust
from inline.errors import OneLineParser, exit_on_user_error


def main() -> None:
    args = parse_args()
    # Ended in either way, it writes down what it has.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    prepare()
    from inline.inference.outputs import run

    run(args)


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file, or the name of one in configs/')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('inputs', nargs='+', metavar='input', help='image, or folder of images')
    parser.add_argument('--out', type=Path, required=True, metavar='DIR', help='folder to write')
    parser.add_argument(
        '--overwrite',
        action='store_true',
        help='write into a folder that is not empty, and replace the pictures, label maps and JSON files of '
        'the same names in it',
    )
    parser.add_argument('--batch-size', type=int, default=1, metavar='N', help='images at once (default: 1)')
    parser.add_argument(
        '--tile',
        type=int,
        metavar='N',
        help='segmentation in tiles of N×N pixels of the image in its own size',
    )
    parser.add_argument(
        '--overlap', type=int, default=0, metavar='N', help='pixels that tiles share at least (default: 0)'
    )
    parser.add_argument(
        '--full-size', action='store_true', help='segmentation without the resizing of the test pipeline'
    )
    parser.add_argument(
        '--score-thr',
        type=float,
        default=0.3,
        metavar='X',
        help='draw boxes from this score on (default: 0.3)',
    )
    parser.add_argument('--skip-bad', action='store_true', help='leave out images that cannot be read')
    parser.add_argument('--device', metavar='D', help='cpu, cuda:0, … (default: a GPU if there is one)')
    add_trust(parser)
    return parser.parse_args()


if __name__ == '__main__':
    with exit_on_user_error():
        main()
