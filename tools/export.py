#!/usr/bin/env python
"""Export a trained model to a file that runs without this package, and check that it computes the same.

python tools/export.py CONFIG CHECKPOINT --format onnx --dynamic

docs/export.md says what is in the file and how other programs run it.
"""

import argparse
import re
import signal
from pathlib import Path

from inline.compat import prepare
from inline.engine.flags import add_cfg_options, add_data_root, add_trust
from inline.errors import OneLineParser, UserError, exit_on_user_error

KINDS = ('onnx', 'torch-export', 'aoti')
WHAT = ('model', 'backbone')


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file, or the name of one in configs/')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--format', choices=KINDS, default='onnx', help='kind of file (default: onnx)')
    parser.add_argument('--dynamic', action='store_true', help='any batch, height and width')
    parser.add_argument('--size', metavar='H[xW]', help="image size to trace at (default: the config's)")
    parser.add_argument('--what', choices=WHAT, default='model', help='the whole model, or its backbone')
    parser.add_argument(
        '--with-preprocessing', action='store_true', help='take pixels of 0 to 255, not normalised ones'
    )
    parser.add_argument('--int8', action='store_true', help='int8 weights in linear layers (onnx)')
    parser.add_argument(
        '--evaluate', action='store_true', help='test the file and the model on the test data'
    )
    parser.add_argument('--out', type=Path, metavar='FILE', help='file to write (default: by the checkpoint)')
    add_data_root(parser)
    add_cfg_options(parser)
    add_trust(parser)
    args = parser.parse_args()
    # Ended in either way, it leaves no half of a file.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    size = parse_size(args.size) if args.size else None
    prepare()
    from inline.engine.config import set_data_root
    from inline.engine.finetune import fit_to_own_data
    from inline.engine.safe_loading import install as install_safe_loading
    from inline.engine.safe_loading import trusting
    from inline.export.run import Request, export
    from inline.inference.loading import find_config

    install_safe_loading()
    cfg = find_config(args.config, args.cfg_options)
    if args.data_root:
        set_data_root(cfg, args.data_root)
    if args.evaluate:
        fit_to_own_data(cfg)
    request = Request(
        name=Path(args.config).stem,
        checkpoint=args.checkpoint,
        kind=args.format,
        dynamic=args.dynamic,
        size=size,
        what=args.what,
        with_preprocessing=args.with_preprocessing,
        int8=args.int8,
        evaluate=args.evaluate,
        out=args.out,
    )
    with trusting(args.trust_checkpoint):
        for line in export(cfg, request):
            print(line, flush=True)


def parse_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r'(\d+)(?:[x×](\d+))?', text)
    if match is None:
        raise UserError(f'--size {text!r}: give one side or HEIGHTxWIDTH, for example 224 or 480x640')
    return int(match[1]), int(match[2] or match[1])


if __name__ == '__main__':
    with exit_on_user_error():
        main()
