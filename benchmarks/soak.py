"""Train on digits for a long time, with validation and checkpoints, and check that memory does not grow.

python benchmarks/soak.py --minutes 30 --out work_dirs/soak

The time counts from the first checkpoint. The exit code is 1 if the memory of all processes grows by 2 % or
more after warm-up, or if the number of open files grows.
"""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from inline.benchmark.soak import Sample, collect_samples, judge, plot_samples, write_samples
from inline.reproduce.runs import ROOT, tool_command, tool_environment
from inline.utils.arguments import check_positive
from inline.utils.atomic import make_folder
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'
# More than any run will reach.
MAX_ITERS = 10**8
SHUTDOWN_SECONDS = 60


def main() -> int:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument('--minutes', type=float, default=30, help='time to train (default: %(default)s)')
    parser.add_argument('--interval', type=float, default=5, help='seconds between samples (default: 5)')
    parser.add_argument('--warm-up', type=float, default=0.25, help='fraction to ignore (default: 0.25)')
    parser.add_argument('--workers', type=int, default=2, help='data workers (default: %(default)s)')
    parser.add_argument('--every', type=int, default=100, help='steps between validations and checkpoints')
    parser.add_argument('--config', type=Path, default=CONFIG, help='config with an iteration-based loop')
    parser.add_argument('--data-root', help='folder of the datasets (default: data)')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/soak'), help='output folder')
    args = parser.parse_args()
    for flag, value in (('--minutes', args.minutes), ('--interval', args.interval)):
        if value <= 0:
            raise UserError(f'{flag} {value:g}: must be greater than 0')
    if not 0 <= args.warm_up < 1:
        raise UserError(f'--warm-up {args.warm_up:g}: must be at least 0 and below 1')
    check_positive('--every', args.every)
    make_folder('--out', args.out)
    options = [
        f'train_cfg.max_iters={MAX_ITERS}',
        f'train_cfg.val_interval={args.every}',
        f'default_hooks.checkpoint.interval={args.every}',
        f'train_dataloader.num_workers={args.workers}',
    ]
    flags = ['--work-dir', args.out / 'run', *(['--data-root', args.data_root] if args.data_root else [])]
    command = tool_command('train', [args.config], 1, [*flags, '--cfg-options', *options])
    log, marker = args.out / 'train.log', args.out / 'run' / 'last_checkpoint'
    marker.unlink(missing_ok=True)
    with log.open('wb') as file:
        training = subprocess.Popen(command, stdout=file, stderr=file, env=tool_environment(), cwd=ROOT)
    process = psutil.Process(training.pid)
    try:
        wait_for_checkpoint(training, marker)
        samples = collect_samples(process, 60 * args.minutes, args.interval, print_sample)
        code = training.poll()
    finally:
        stop(training)
    if code is not None:
        last_line = ' '.join(log.read_text(errors='replace').splitlines()[-1:])
        raise UserError(f'the training ended with exit code {code}: {last_line} (full log: {log})')
    write_samples(samples, args.out / 'soak.csv')
    verdict = judge(samples, args.warm_up)
    plot_samples(samples, verdict, args.out / 'soak.png')
    print(f'{verdict.describe()}; samples and plot are in {args.out}')
    return 0 if verdict.passed else 1


def wait_for_checkpoint(training: subprocess.Popen[bytes], marker: Path) -> None:
    """Wait for the first checkpoint: imports, training and validation have then run once."""
    while training.poll() is None and not marker.exists():
        time.sleep(0.2)


def print_sample(sample: Sample) -> None:
    print(
        f'{sample.seconds:7.0f} s  {sample.processes} processes  {sample.memory:7.1f} MB  '
        f'{sample.handles} open files  {sample.shared} shared tensors  {sample.threads} threads',
        flush=True,
    )


def stop(training: subprocess.Popen[bytes]) -> None:
    """Stop the training, which may save a checkpoint first, and its workers."""
    workers = psutil.Process(training.pid).children(recursive=True) if training.poll() is None else []
    training.terminate()
    try:
        training.wait(SHUTDOWN_SECONDS)
    except subprocess.TimeoutExpired:
        training.kill()
        training.wait()
    for process in workers:
        if process.is_running():
            process.kill()


if __name__ == '__main__':
    with exit_on_user_error():
        sys.exit(main())
