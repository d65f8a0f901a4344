#!/usr/bin/env python
"""Say where a training step's time goes: data, forward, backward, optimizer, communication, hooks.

Start it as tools/dist_train.sh starts training to see communication as well.
"""

import tempfile

from inline.compat import prepare
from inline.engine.flags import add_run_flags
from inline.errors import OneLineParser, UserError, exit_on_user_error


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('--steps', type=int, default=20, help='training steps that are timed (default: 20)')
    add_run_flags(parser)
    args = parser.parse_args()
    if args.steps < 1:
        raise UserError(f'--steps {args.steps}: must be at least 1')
    prepare()
    from mmengine.dist import is_main_process

    from inline.engine.config import check_paths
    from inline.engine.launch import read_config
    from inline.engine.safe_loading import trusting
    from inline.measure.steps import describe_parts, profile_steps

    with tempfile.TemporaryDirectory() as folder, trusting(args.trust_checkpoint):
        args.work_dir = args.work_dir or folder
        cfg = read_config(args)
        check_paths(cfg, ('train_dataloader',))
        parts = profile_steps(cfg, args.steps)
    if is_main_process():
        print(describe_parts(parts))


if __name__ == '__main__':
    with exit_on_user_error():
        main()
