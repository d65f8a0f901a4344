"""Check a copy of ImageNet, COCO, ADE20K or Tiny-ImageNet and link it to where the configs expect it.

Reports missing files, invalid annotations and broken images, and where to download them.
Exit code 0: no problems. 1: problems were found. 2: invalid command."""

import argparse
import os
from pathlib import Path

from inline.datasets.prepare.inspection import Decoding, count_cores
from inline.datasets.prepare.run import DATASETS, prepare
from inline.utils.errors import OneLineParser

QUICK_LIMIT = 1000


def main() -> int:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('dataset', choices=DATASETS, help='name of the dataset')
    parser.add_argument(
        'path', type=Path, help='its folder, or a parent folder; of Tiny-ImageNet also its zip'
    )
    parser.add_argument(
        '--data-root',
        type=Path,
        default=os.environ.get('INLINE_DATA_ROOT') or 'data',
        metavar='FOLDER',
        help='folder for the link, data/ in the configs (default: $INLINE_DATA_ROOT or data)',
    )
    parser.add_argument(
        '--workers',
        type=int,
        default=count_cores(),
        metavar='N',
        help='processes that decode images (default: one per core)',
    )
    images = parser.add_mutually_exclusive_group()
    images.add_argument('--quick', action='store_true', help=f'decode only {QUICK_LIMIT:,} images per folder')
    images.add_argument('--no-images', action='store_true', help='do not decode images')
    links = parser.add_mutually_exclusive_group()
    links.add_argument('--no-link', action='store_true', help='check only')
    links.add_argument('--link-anyway', action='store_true', help='link it despite problems')
    args = parser.parse_args()
    decoding = Decoding(args.workers, QUICK_LIMIT if args.quick else None)
    return prepare(
        DATASETS[args.dataset],
        args.path,
        args.data_root,
        None if args.no_images else decoding,
        'never' if args.no_link else 'always' if args.link_anyway else 'if valid',
    )
