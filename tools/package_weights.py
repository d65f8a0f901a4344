#!/usr/bin/env python
"""Package a training checkpoint: write NAME.safetensors and a model card, NAME.md.

The checkpoint is evaluated with the config's test data. The card states the result, the recipe, the data and
its terms, and the duration of training.
"""

from pathlib import Path

from inline.openmmlab.patches import apply_patches
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('name', help='model, for example inline_pvt_micro')
    parser.add_argument('config', help='training config, or its name in configs/')
    parser.add_argument('checkpoint', help='training checkpoint')
    parser.add_argument('--data-root', type=Path, metavar='DIR', help="test data (default: the config's)")
    parser.add_argument('--commit', help='commit used for training (default: the current one)')
    parser.add_argument('--hours', type=float, help='duration (default: from the log in the checkpoint)')
    parser.add_argument(
        '--after',
        nargs='+',
        default=[],
        metavar='CONFIG',
        help='configs of the runs before it, if it started from the result of another; the last one first',
    )
    parser.add_argument(
        '--out', type=Path, metavar='DIR', help='output folder (default: that of the package)'
    )
    args = parser.parse_args()
    apply_patches()
    from inline.apis.loading import find_config
    from inline.checkpoints.sources import PACKAGED_FOLDER
    from inline.engine.config_files import find_config_path
    from inline.reproduce.packaging import PackagingOptions, package
    from inline.reproduce.provenance import ROOT

    def shown(name: str) -> str:
        path = find_config_path(name).resolve()
        return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name)

    if args.after and args.hours is None:
        raise UserError('--after needs --hours: the checkpoint logs the time of the last run only')
    options = PackagingOptions(
        args.name,
        shown(args.config),
        args.data_root,
        args.commit,
        args.hours,
        tuple((shown(name), find_config(name)) for name in args.after),
        args.out or PACKAGED_FOLDER,
    )
    for message in package(args.checkpoint, find_config(args.config), options):
        print(message)


if __name__ == '__main__':
    with exit_on_user_error():
        main()
