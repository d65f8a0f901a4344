#!/usr/bin/env python
"""Test a checkpoint with the evaluators of its config. Which toolbox tests it, the config says."""

from inline.compat import prepare
from inline.engine.flags import add_run_flags
from inline.errors import OneLineParser, exit_on_user_error


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('config', help='config file, for example configs/digits/inline-pvt-micro_digits.py')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--out', metavar='FILE.pkl', help='write all predictions to this file')
    parser.add_argument('--show-dir', help='draw every prediction into this folder')
    parser.add_argument(
        '--tta', action='store_true', help='test every image at several scales and flipped (segmentation)'
    )
    add_run_flags(parser)
    args = parser.parse_args()
    prepare()
    from inline.engine.launch import test

    test(args)


if __name__ == '__main__':
    with exit_on_user_error():
        main()
