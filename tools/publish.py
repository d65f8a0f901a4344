#!/usr/bin/env python
"""Publish a checkpoint: weights without optimizer and logs, the hash in the name, and a model card.

Of a run with a moving average (EMA), that average is published. Classes, colours and the config stay, without
the folders of your machine that stand at its top level. No code that a file may hold is executed.
"""

from pathlib import Path

from inline.compat import prepare
from inline.errors import OneLineParser, exit_on_user_error


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('checkpoint', type=Path, help='file of training, or a converted one')
    parser.add_argument(
        '--out', type=Path, metavar='DIR', help='folder to write to (default: published/NAME_OF_CONFIG)'
    )
    parser.add_argument(
        '--format',
        choices=('safetensors', 'pth'),
        default='safetensors',
        help='kind of file for the weights (default: %(default)s)',
    )
    parser.add_argument(
        '--config',
        help='config that it was trained with, or the name of one in configs/ (default: told from the '
        'checkpoint)',
    )
    parser.add_argument(
        '--license', metavar='ID', help='of the weights, for the card: apache-2.0, mit, … (default: none)'
    )
    parser.add_argument('--overwrite', action='store_true', help='replace what an earlier call wrote there')
    args = parser.parse_args()
    prepare()
    from inline.engine.publish import publish
    from inline.inference.loading import find_config_path

    name = find_config_path(args.config).stem if args.config else None
    done = publish(args.checkpoint, args.out, args.format, name, args.overwrite, args.license)
    print(f'{done.file}: the weights are {done.weights}')
    print(f'{done.card}: read it, and add what only you know')


if __name__ == '__main__':
    with exit_on_user_error():
        main()
