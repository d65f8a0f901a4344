"""Train the model of a config."""

from inline.engine.flags import add_run_flags, add_shorthands
from inline.engine.signals import end_with_launcher, stop_request
from inline.openmmlab.patches import apply_patches
from inline.utils.errors import OneLineParser


def main() -> None:
    end_with_launcher()
    stop_request.listen()
    parser = OneLineParser(description=__doc__)
    parser.add_argument('config', help='config file, or the name of a file in configs/')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='resume from a checkpoint; without a path, from the last one in the work directory',
    )
    parser.add_argument(
        '--pretrained',
        metavar='CHECKPOINT',
        help='initialise the backbone with these weights: file, folder, packaged name, URL or USER/MODEL on '
        'the Hub; none for random weights',
    )
    parser.add_argument(
        '--amp',
        action='store_true',
        help='train with mixed precision, in bfloat16 if the device supports it '
        '(on a CPU and in detectors only in the backbone)',
    )
    parser.add_argument('--no-validate', action='store_true', help='do not evaluate during training')
    parser.add_argument(
        '--auto-scale-lr', action='store_true', help='scale the learning rate with the total batch size'
    )
    parser.add_argument(
        '--replay',
        metavar='DUMP',
        help='replay a dumped step with a non-finite loss, and find the module that caused it',
    )
    add_shorthands(parser)
    add_run_flags(parser)
    args = parser.parse_args()
    apply_patches()
    from inline.engine.launch import train
    from inline.engine.replay import replay

    if args.replay is None:
        train(args)
    else:
        replay(args)
