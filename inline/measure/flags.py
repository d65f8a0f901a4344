"""Flags of the commands that time something."""

from argparse import ArgumentParser, Namespace

from inline.errors import UserError

COUNTS = ('batch', 'threads', 'repetitions')


def add_timing_flags(parser: ArgumentParser, repetitions: int) -> None:
    parser.add_argument('--threads', type=int, default=1, help='threads of the CPU (default: 1)')
    parser.add_argument(
        '--repetitions',
        type=int,
        default=repetitions,
        help=f'of every measurement (default: {repetitions})',
    )
    parser.add_argument(
        '--device', choices=('cpu', 'cuda'), help='what is timed (default: cuda if there is a GPU, else cpu)'
    )


def check_counts(args: Namespace) -> None:
    """Refuse batches, threads and repetitions below one."""
    for name in COUNTS:
        if getattr(args, name, 1) < 1:
            raise UserError(f'--{name} {getattr(args, name)}: must be at least 1')
