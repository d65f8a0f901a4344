"""Test a checkpoint with the test data and evaluators of a config."""

from inline.engine.flags import add_allow_other_classes, add_run_flags
from inline.engine.signals import end_with_launcher
from inline.openmmlab.patches import apply_patches
from inline.utils.errors import OneLineParser


def main() -> None:
    end_with_launcher()
    parser = OneLineParser(description=__doc__)
    parser.add_argument('config', help='config file, or the name of a file in configs/')
    parser.add_argument('checkpoint', help='checkpoint: file, folder, URL or USER/MODEL on the Hub')
    parser.add_argument('--out', metavar='FILE.pkl', help='write all predictions to this file')
    parser.add_argument('--show-dir', help='save an image of every prediction in this folder')
    parser.add_argument(
        '--tta', action='store_true', help='test every image at several scales and flipped (segmentation)'
    )
    add_allow_other_classes(parser)
    add_run_flags(parser)
    args = parser.parse_args()
    apply_patches()
    from inline.engine.launch import test

    test(args)
