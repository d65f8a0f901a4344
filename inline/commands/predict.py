"""Run a trained classifier, detector or segmentor on images; write annotated images and JSON to a folder.

Inputs are image files, folders (searched recursively), glob patterns, URLs and videos, of which every frame
is used. See docs/inference.md for the output files.
"""

import argparse
import signal
from pathlib import Path

from inline.engine.flags import add_allow_other_classes, add_trust
from inline.openmmlab.patches import apply_patches
from inline.utils.errors import OneLineParser


def main() -> None:
    args = parse_args()
    # SIGTERM raises like Ctrl-C: finished predictions are written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    apply_patches()
    from inline.apis.outputs import run

    run(args)


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file, or the name of a file in configs/')
    parser.add_argument(
        'checkpoint',
        help='checkpoint: file, folder, URL or USER/MODEL on the Hub; or an exported file, .onnx or .xml',
    )
    parser.add_argument('inputs', nargs='+', metavar='input', help='image, folder, pattern, URL or video')
    parser.add_argument('--out', type=Path, required=True, metavar='DIR', help='output folder')
    parser.add_argument(
        '--overwrite',
        action='store_true',
        help='write to a folder that is not empty, and replace files of the same names',
    )
    parser.add_argument(
        '--batch-size', type=int, default=1, metavar='N', help='images per batch (default: 1)'
    )
    parser.add_argument(
        '--tile',
        type=int,
        metavar='N',
        help='segment in tiles of N×N pixels, at the original size of the image',
    )
    parser.add_argument(
        '--overlap', type=int, default=0, metavar='N', help='minimum overlap of tiles in pixels (default: 0)'
    )
    parser.add_argument(
        '--full-size',
        action='store_true',
        help='segment at the original size: skip the resizing of the test pipeline',
    )
    parser.add_argument(
        '--score-thr',
        type=float,
        metavar='X',
        help='minimum score of boxes (default: 0.3 in images, all boxes in the JSON file)',
    )
    parser.add_argument(
        '--top-k',
        type=int,
        metavar='N',
        help='number of classes per image (default: 5), or of boxes (default: all)',
    )
    parser.add_argument('--skip-bad', action='store_true', help='skip images that cannot be read')
    parser.add_argument('--device', metavar='D', help='cpu, cuda:0, … (default: GPU if available)')
    parser.add_argument(
        '--runtime', choices=('torch', 'onnx', 'openvino'), help='default: torch, or that of an exported file'
    )
    parser.add_argument(
        '--precision', choices=('fp32', 'bf16', 'int8'), help='default: fp32, or that of an exported file'
    )
    add_allow_other_classes(parser)
    add_trust(parser)
    return parser.parse_args()
