#!/usr/bin/env python
"""Check a copy of ImageNet, COCO or ADE20K and link it to where the configs expect it.

Tells which files are missing, which annotations do not fit together and which images are broken, and where
the missing parts come from. Exit code 0: all is well. 1: problems were found. 2: the command is wrong."""

import argparse
import os
import sys
from pathlib import Path

from inline.datasets.prepare.images import Decoding, count_cores
from inline.datasets.prepare.run import DATA_SETS, prepare
from inline.errors import OneLineParser, exit_on_user_error

QUICK_LIMIT = 1000


def main() -> int:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data_set', choices=DATA_SETS, help='which data set it is')
    parser.add_argument('path', type=Path, help='its folder, or one that holds it under its usual name')
    parser.add_argument(
        '--data-root',
        type=Path,
        default=os.environ.get('INLINE_DATA_ROOT') or 'data',
        metavar='FOLDER',
        help='folder to link it into, what configs call data/ (default: $INLINE_DATA_ROOT, or data)',
    )
    parser.add_argument(
        '--workers',
        type=int,
        default=count_cores(),
        metavar='N',
        help='processes that decode images (default: one a core)',
    )
    images = parser.add_mutually_exclusive_group()
    images.add_argument(
        '--quick', action='store_true', help=f'decode only {QUICK_LIMIT:,} images of each folder'
    )
    images.add_argument('--no-images', action='store_true', help='decode no images')
    links = parser.add_mutually_exclusive_group()
    links.add_argument('--no-link', action='store_true', help='check only')
    links.add_argument('--link-anyway', action='store_true', help='link it in spite of problems')
    args = parser.parse_args()
    decoding = Decoding(args.workers, QUICK_LIMIT if args.quick else None)
    return prepare(
        DATA_SETS[args.data_set],
        args.path,
        args.data_root,
        None if args.no_images else decoding,
        'never' if args.no_link else 'anyway' if args.link_anyway else 'if well',
    )


if __name__ == '__main__':
    with exit_on_user_error():
        sys.exit(main())
