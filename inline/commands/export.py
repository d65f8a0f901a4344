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

FORMATS = ('onnx', 'openvino', 'torch-export', 'aoti')
PRECISIONS = ('fp32', 'bf16')
# Test images for the accuracy of an int8 file, unless flags say otherwise.
EVAL_IMAGES = 500


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file, or the name of a file in configs/')
    parser.add_argument('checkpoint', help='checkpoint: file, folder, URL or USER/MODEL on the Hub')
    parser.add_argument('--format', choices=FORMATS, default='onnx', help='file format (default: onnx)')
    parser.add_argument('--dynamic', action='store_true', help='accept any batch size, height and width')
    parser.add_argument(
        '--size',
        metavar='H[xW]',
        help="image size to trace at, or with --dynamic to compare and measure at (default: the config's)",
    )
    parser.add_argument(
        '--what', choices=('model', 'backbone'), default='model', help='part to export (default: model)'
    )
    parser.add_argument(
        '--with-preprocessing', action='store_true', help='accept pixel values of 0 to 255 and normalise them'
    )
    parser.add_argument(
        '--image-masks', action='store_true', help='masks of detectors at the size of the image'
    )
    parser.add_argument(
        '--precision',
        choices=PRECISIONS,
        default='fp32',
        help='precision that OpenVINO computes in, a hint in the file (default: fp32)',
    )
    parser.add_argument(
        '--int8',
        action='store_true',
        help='quantise layers to int8, calibrated on training images (onnx and openvino)',
    )
    parser.add_argument(
        '--calibration-images',
        type=int,
        default=128,
        metavar='N',
        help='training images for --int8 (default: %(default)s)',
    )
    parser.add_argument(
        '--evaluate', action='store_true', help='evaluate the model and the file on the test data'
    )
    parser.add_argument(
        '--eval-images',
        type=int,
        metavar='N',
        help=f'evaluate on N random test images (default with --int8: {EVAL_IMAGES}; 0 for no evaluation)',
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
    if args.format in ('onnx', 'openvino'):
        require_extras(f'--format {args.format}', 'export')
    if args.int8 and not args.evaluate and args.eval_images is None and args.what == 'model':
        args.eval_images = EVAL_IMAGES
    evaluate = args.evaluate or bool(args.eval_images)
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
    if (evaluate or args.int8) and 'custom_data' in cfg:
        with trust_checkpoints(args.trust_checkpoint):
            classes = read_checkpoint(args.checkpoint).dataset_meta.get('classes') or ()
        fit_to_custom_data(cfg, phase='train' if args.int8 else 'test', model_classes=classes)
    options = ExportOptions(
        name=Path(cfg.filename).stem,
        checkpoint=args.checkpoint,
        format=args.format,
        dynamic=args.dynamic,
        size=size,
        what=args.what,
        with_preprocessing=args.with_preprocessing,
        image_masks=args.image_masks,
        precision=args.precision,
        int8=args.int8,
        calibration_images=args.calibration_images,
        evaluate=evaluate,
        eval_images=args.eval_images or None,
        out=args.out,
    )
    with trust_checkpoints(args.trust_checkpoint):
        for line in export(cfg, options):
            print(line, flush=True)
