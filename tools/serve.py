#!/usr/bin/env python
"""Serve a page on this machine to try a model on: drop an image, see the prediction, click a point.

It shows what the clicked token attends to in every layer, and the local residual; with --compare, those of
another model beside it. Only this machine can open the page. Ctrl-C ends it.
"""

import argparse
import signal
import threading

from inline.compat import prepare
from inline.engine.flags import add_trust
from inline.errors import OneLineParser, exit_on_user_error


def main() -> None:
    args = parse_args()
    prepare()
    from inline.serve.app import check_port, running
    from inline.serve.desk import Desk
    from inline.serve.served import read_models
    from inline.serve.uploads import Limits

    limits = Limits(args.max_megabytes, args.max_megapixels)
    check_port(args.port)
    pairs = [(args.config, args.checkpoint), *([args.compare] if args.compare else [])]
    desk = Desk(read_models(pairs, args.device, args.trust_checkpoint), limits)
    # Ended in either way, the page leaves no files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running(desk, args.port) as address:
        print(f'open {address} in a browser on this machine; Ctrl-C ends the page', flush=True)
        threading.Event().wait()


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file, or the name of one in configs/')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--compare', nargs=2, metavar=('CONFIG', 'CHECKPOINT'), help='another model to show beside it'
    )
    parser.add_argument('--port', type=int, default=7860, help='port on 127.0.0.1 (default: %(default)s)')
    parser.add_argument(
        '--max-megabytes', type=float, default=20, metavar='MB', help='largest file (default: %(default)s)'
    )
    parser.add_argument(
        '--max-megapixels',
        type=float,
        default=25,
        metavar='MP',
        help='most pixels of an image, in millions (default: %(default)s)',
    )
    parser.add_argument('--device', metavar='D', help='cpu, cuda:0, … (default: a GPU if there is one)')
    add_trust(parser)
    return parser.parse_args()


if __name__ == '__main__':
    with exit_on_user_error():
        main()
