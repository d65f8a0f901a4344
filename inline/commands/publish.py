"""Publish a checkpoint: weights without optimizer and logs, named by their hash, and a model card.

If the run used EMA, the EMA weights are published. Classes, palette and config
are kept, without the top-level settings that contain paths of your machine. No code in the file is run.
"""

from pathlib import Path

from inline.utils.errors import OneLineParser
from inline.utils.extras import require_modules


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('checkpoint', help='training checkpoint, or a converted one')
    parser.add_argument(
        '--out', type=Path, metavar='DIR', help='output folder (default: published/NAME_OF_CONFIG)'
    )
    parser.add_argument(
        '--format',
        choices=('safetensors', 'pth'),
        default='safetensors',
        help='format of the weight file (default: %(default)s)',
    )
    parser.add_argument(
        '--config',
        help='training config, or its name in configs/ (default: the name in the checkpoint)',
    )
    parser.add_argument(
        '--license',
        metavar='ID',
        help='licence of the weights for the card: apache-2.0, mit, … (default: none)',
    )
    parser.add_argument('--overwrite', action='store_true', help='replace files of an earlier run')
    args = parser.parse_args()
    require_modules('inline publish', 'hub', 'yaml')
    if args.format == 'safetensors':
        require_modules('--format safetensors', 'hub', 'safetensors')
    from inline.engine.config_files import find_config_path
    from inline.hub.publish import publish

    name = find_config_path(args.config).stem if args.config else None
    done = publish(args.checkpoint, args.out, args.format, name, args.overwrite, args.license)
    print(f'{done.file}: {done.weights}')
    print(f'{done.card}: review it and add the missing facts')
