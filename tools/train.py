#!/usr/bin/env python
"""Train the model of a config. Which toolbox trains it, the config says."""

from inline.compat import prepare
from inline.engine.flags import add_run_flags
from inline.engine.signals import stop_request
from inline.errors import OneLineParser, exit_on_user_error


def main() -> None:
    stop_request.watch()
    parser = OneLineParser(description=__doc__)
    parser.add_argument('config', help='config file, for example configs/digits/inline-pvt-micro_digits.py')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from a checkpoint; without a path, from the last one in the work directory',
    )
    parser.add_argument(
        '--pretrained', metavar='CHECKPOINT', help='start the backbone from the weights in this checkpoint'
    )
    parser.add_argument(
        '--amp', action='store_true', help='mixed precision (bfloat16 in the backbone on a CPU)'
    )
    parser.add_argument('--no-validate', action='store_true', help='do not evaluate during training')
    parser.add_argument(
        '--auto-scale-lr', action='store_true', help='scale the learning rate with the total batch size'
    )
    parser.add_argument(
        '--replay',
        metavar='DUMP',
        help='run the step again at which a training stopped because its loss was not finite, and tell where',
    )
    add_run_flags(parser)
    args = parser.parse_args()
    prepare()
    from inline.engine.launch import train
    from inline.engine.replay import replay

    if args.replay is None:
        train(args)
    else:
        replay(args)


if __name__ == '__main__':
    with exit_on_user_error():
        main()
