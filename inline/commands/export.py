"""Export a trained model to a file that runs without this package, and verify its outputs.

inline export CONFIG CHECKPOINT --format onnx --dynamic

See docs/export.md for the contents of the file and how to run it.
"""

import argparse
import signal
from pathlib import Path

from inline.engine.flags import add_cfg_options, add_data_root, add_trust
from inline.openmmlab.patches import apply_patches
from inline.utils.arguments import parse_size
from inline.utils.errors import OneLineParser
from inline.utils.extras import require_extras

FORMATS = ('onnx', 'torch-export', 'aoti')


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file, or the name of a file in configs/')
    parser.add_argument('checkpoint', help='checkpoint: file, folder, URL or USER/MODEL on the Hub')
    parser.add_argument('--format', choices=FORMATS, default='onnx', help='file format (default: onnx)')
    parser.add_argument('--dynamic', action='store_true', help='accept any batch size, height and width')
    parser.add_argument('--size', metavar='H[xW]', help="image size to trace at (default: the config's)")
    parser.add_argument(
        '--what', choices=('model', 'backbone'), default='model', help='part to export (default: model)'
    )
    parser.add_argument(
        '--with-preprocessing', action='store_true', help='accept pixel values of 0 to 255 and normalise them'
    )
    parser.add_argument(
        '--image-masks', action='store_true', help='masks of detectors at the size of the image'
    )
    parser.add_argument('--int8', action='store_true', help='quantise linear layers to int8 (onnx only)')
    parser.add_argument(
        '--evaluate', action='store_true', help='evaluate the model and the file on the test data'
    )
    parser.add_argument(
        '--out', type=Path, metavar='FILE', help='output file (default: next to the checkpoint)'
    )
    add_data_root(parser)
    add_cfg_options(parser)
    add_trust(parser)
    args = parser.parse_args()
    # SIGTERM raises like Ctrl-C: temporary files are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    size = parse_size('--size', args.size) if args.size else None
    if args.format == 'onnx':
        require_extras('--format onnx', 'export')
    apply_patches()
    from inline.apis.export.run import ExportOptions, export
    from inline.apis.loading import find_config
    from inline.checkpoints import read_checkpoint, trust_checkpoints
    from inline.datasets.custom import fit_to_custom_data
    from inline.engine.config import set_data_root
    from inline.openmmlab.patches import read_data_files_safely

    read_data_files_safely()
    cfg = find_config(args.config, args.cfg_options)
    if args.data_root:
        set_data_root(cfg, args.data_root)
    if args.evaluate and 'custom_data' in cfg:
        with trust_checkpoints(args.trust_checkpoint):
            classes = read_checkpoint(args.checkpoint).dataset_meta.get('classes') or ()
        fit_to_custom_data(cfg, phase='test', model_classes=classes)
    options = ExportOptions(
        name=Path(cfg.filename).stem,
        checkpoint=args.checkpoint,
        format=args.format,
        dynamic=args.dynamic,
        size=size,
        what=args.what,
        with_preprocessing=args.with_preprocessing,
        image_masks=args.image_masks,
        int8=args.int8,
        evaluate=args.evaluate,
        out=args.out,
    )
    with trust_checkpoints(args.trust_checkpoint):
        for line in export(cfg, options):
            print(line, flush=True)
