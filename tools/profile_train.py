#!/usr/bin/env python
"""Measure the time of each phase of a training step, from loading data to hooks.

Launch it with torchrun and --launcher pytorch to see communication.
"""

import tempfile

from inline.engine.flags import add_run_flags
from inline.openmmlab.patches import apply_patches
from inline.utils.arguments import check_positive
from inline.utils.errors import OneLineParser, exit_on_user_error


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('config', help='config file, or the name of a file in configs/')
    parser.add_argument('--steps', type=int, default=20, help='number of steps to time (default: 20)')
    add_run_flags(parser)
    args = parser.parse_args()
    check_positive('--steps', args.steps)
    apply_patches()
    from mmengine.dist import is_main_process

    from inline.benchmark.steps import format_phases, profile_steps
    from inline.checkpoints import trust_checkpoints
    from inline.datasets.validation.checks import check_paths
    from inline.engine.launch import read_config

    with tempfile.TemporaryDirectory() as folder, trust_checkpoints(args.trust_checkpoint):
        args.work_dir = args.work_dir or folder
        cfg = read_config(args)
        check_paths(cfg, ('train_dataloader',))
        phases = profile_steps(cfg, args.steps)
    if is_main_process():
        print(format_phases(phases))


if __name__ == '__main__':
    with exit_on_user_error():
        main()
