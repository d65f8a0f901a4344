"""Serve a local web page to try a model: upload an image, see the prediction, click a point.

The page shows the attention of the clicked token in every layer and the local residual, with --compare also
those of a second model. The server listens on 127.0.0.1 only. Stop it with Ctrl-C.
"""

import argparse
import signal
import threading

from inline.engine.flags import add_trust
from inline.openmmlab.patches import apply_patches
from inline.utils.errors import OneLineParser


def main() -> None:
    args = parse_args()
    apply_patches()
    from inline.apis.serve.app import check_port, run_server
    from inline.apis.serve.controller import Controller, load_models
    from inline.apis.serve.requests import check_hosts
    from inline.apis.serve.uploads import UploadLimits

    limits = UploadLimits(args.max_megabytes, args.max_megapixels, args.max_seconds)
    check_hosts(args.allow_host)
    check_port(args.port)
    pairs = [(args.config, args.checkpoint), *([args.compare] if args.compare else [])]
    controller = Controller(load_models(pairs, args.device, args.trust_checkpoint), limits)
    # SIGTERM raises like Ctrl-C: temporary files are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with run_server(controller, args.port, args.allow_host) as url:
        print(f'open {url} in a browser on this machine; press Ctrl-C to stop', flush=True)
        threading.Event().wait()


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file, or the name of a file in configs/')
    parser.add_argument('checkpoint', help='checkpoint: file, folder, URL or USER/MODEL on the Hub')
    parser.add_argument(
        '--compare', nargs=2, metavar=('CONFIG', 'CHECKPOINT'), help='second model to compare with'
    )
    parser.add_argument('--port', type=int, default=7860, help='port on 127.0.0.1 (default: %(default)s)')
    parser.add_argument(
        '--max-megabytes',
        type=float,
        default=20,
        metavar='MB',
        help='maximum file size (default: %(default)s)',
    )
    parser.add_argument(
        '--max-megapixels',
        type=float,
        default=25,
        metavar='MP',
        help='maximum number of pixels in millions (default: %(default)s)',
    )
    parser.add_argument(
        '--max-seconds',
        type=float,
        default=10,
        metavar='S',
        help='maximum time to decode an image (default: %(default)s)',
    )
    parser.add_argument(
        '--allow-host',
        action='append',
        default=[],
        metavar='NAME',
        help='also answer requests for this host, the name of a proxy; can be repeated',
    )
    parser.add_argument('--device', metavar='D', help='cpu, cuda:0, … (default: GPU if available)')
    add_trust(parser)
    return parser.parse_args()
