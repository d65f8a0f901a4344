"""The hardware of a benchmark: command-line flags, device, threads and a one-line description."""

from argparse import ArgumentParser, Namespace

import torch

from inline.utils.arguments import check_positive
from inline.utils.environment import describe_hardware
from inline.utils.errors import UserError
from inline.utils.processes import keep_freed_memory

CPU = torch.device('cpu')


def add_timing_flags(parser: ArgumentParser, repetitions: int) -> None:
    parser.add_argument('--threads', type=int, default=1, help='CPU threads (default: 1)')
    parser.add_argument(
        '--repetitions',
        type=int,
        default=repetitions,
        help='repetitions of each measurement (default: %(default)s)',
    )
    parser.add_argument(
        '--device', choices=('cpu', 'cuda'), help='device to time (default: cuda if available, else cpu)'
    )


def check_counts(args: Namespace) -> None:
    """Raise a UserError if batch, threads or repetitions are below 1."""
    for name in ('batch', 'threads', 'repetitions'):
        check_positive(f'--{name}', getattr(args, name, None))


def choose_device(name: str | None) -> torch.device:
    """Return the device 'cpu' or 'cuda'; None selects a GPU if there is one."""
    if name == 'cuda' and not torch.cuda.is_available():
        raise UserError('--device cuda: torch finds no GPU, use cpu')
    return torch.device(name or ('cuda' if torch.cuda.is_available() else 'cpu'))


def prepare_for_timing(threads: int) -> None:
    """Set the number of CPU threads and make glibc keep freed memory.

    Otherwise the measurement would include page faults, whose number varies from process to process.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()


def describe_machine(device: torch.device) -> str:
    """Return the hardware and the version of torch, for example 'AMD EPYC, 2 cores, torch 2.13.0'."""
    return f'{describe_hardware(device)}, torch {torch.__version__}'
