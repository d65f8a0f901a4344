"""Turn a trained softmax model into an InLine model of the same family by distillation.

The result is in WORK_DIR: student.py and the checkpoints in distill/. Interrupted runs resume.
"""

import argparse
from pathlib import Path

from inline.engine.flags import add_data_root
from inline.openmmlab.patches import apply_patches
from inline.utils.arguments import check_positive
from inline.utils.errors import OneLineParser


def main() -> None:
    args = parse_args()
    apply_patches()
    from inline.reproduce.linearize import Linearization

    weights = str(Path(args.weights).resolve()) if Path(args.weights).exists() else args.weights
    work_dir = args.work_dir or Path('work_dirs') / f'linearize_{Path(args.config).stem}'
    job = Linearization(args.config, weights, work_dir, args.stages, args.epochs, args.match_epochs)
    flags = ['--data-root', args.data_root] if args.data_root else []
    folder = job.run(args.nproc, flags)
    print(f'InLine model: config {work_dir / "student.py"}, checkpoints in {folder}')


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config of the softmax model: a file, or its name in configs/')
    parser.add_argument(
        '--from', dest='weights', required=True, metavar='CHECKPOINT', help='weights of the softmax model'
    )
    parser.add_argument(
        '--stages',
        type=int,
        nargs='+',
        metavar='N',
        help="stages to convert, or blocks of a DeiT, from 1 (default: those of the family's InLine model)",
    )
    parser.add_argument(
        '--epochs', type=int, metavar='N', help='epochs of distillation (default: a fifth of the config)'
    )
    parser.add_argument(
        '--match-epochs',
        type=int,
        default=0,
        metavar='N',
        help='epochs of a first phase that trains the new mixers alone (default: 0)',
    )
    parser.add_argument(
        '--work-dir', type=Path, metavar='FOLDER', help='(default: work_dirs/linearize_NAME_OF_CONFIG)'
    )
    parser.add_argument('--nproc', type=int, default=1, help='processes (default: 1)')
    add_data_root(parser)
    args = parser.parse_args()
    for flag in ('epochs', 'nproc'):
        check_positive(f'--{flag}', getattr(args, flag))
    return args
