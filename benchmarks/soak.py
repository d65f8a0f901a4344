"""A long training on digits, validation and checkpoints included, that must hold memory and open files.

python benchmarks/soak.py --minutes 30 --out work_dirs/soak

The time counts from the first checkpoint. Exit code 1 if memory of all processes grows by 2 % or more after
warm-up, or the number of open files grows.
"""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from inline.engine.runs import ROOT, environment, tool_command
from inline.errors import OneLineParser, UserError, exit_on_user_error
from inline.measure.soak import Sample, draw, judge, watch, write_samples
from inline.whole_files import make_folder

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'
# More steps than any run will take.
ENDLESS = 10**8
END_SECONDS = 60


def main() -> int:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument('--minutes', type=float, default=30, help='how long to train (default: %(default)s)')
    parser.add_argument('--interval', type=float, default=5, help='seconds between samples (default: 5)')
    parser.add_argument('--warm-up', type=float, default=0.25, help='share not judged (default: 0.25)')
    parser.add_argument('--workers', type=int, default=2, help='data workers (default: %(default)s)')
    parser.add_argument('--every', type=int, default=100, help='steps between validations and saves')
    parser.add_argument('--config', type=Path, default=CONFIG, help='a config that trains by iterations')
    parser.add_argument('--data-root', help='folder that holds the data sets (default: data)')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/soak'), help='folder for what is written')
    args = parser.parse_args()
    if args.minutes <= 0 or args.interval <= 0 or not 0 <= args.warm_up < 1:
        raise UserError('--minutes and --interval must be above 0, and --warm-up from 0 to below 1')
    make_folder('--out', args.out)
    options = [
        f'train_cfg.max_iters={ENDLESS}',
        f'train_cfg.val_interval={args.every}',
        f'default_hooks.checkpoint.interval={args.every}',
        f'train_dataloader.num_workers={args.workers}',
    ]
    words = ['--work-dir', args.out / 'run', *(['--data-root', args.data_root] if args.data_root else [])]
    command = tool_command('train', [args.config], 1, [*words, '--cfg-options', *options])
    log, marker = args.out / 'train.log', args.out / 'run' / 'last_checkpoint'
    marker.unlink(missing_ok=True)
    with log.open('wb') as file:
        training = subprocess.Popen(command, stdout=file, stderr=file, env=environment(), cwd=ROOT)
    process = psutil.Process(training.pid)
    try:
        wait_for_checkpoint(training, marker)
        samples = watch(process, 60 * args.minutes, args.interval, tell)
        code = training.poll()
    finally:
        end(training)
    if code is not None:
        tail = ' '.join(log.read_text(errors='replace').splitlines()[-1:])
        raise UserError(f'the training ended by itself with exit code {code}: {tail} (all of it in {log})')
    write_samples(samples, args.out / 'soak.csv')
    verdict = judge(samples, args.warm_up)
    draw(samples, verdict, args.out / 'soak.png')
    print(f'{verdict.describe()}; samples and curve in {args.out}')
    return 0 if verdict.holds else 1


def wait_for_checkpoint(training: subprocess.Popen[bytes], marker: Path) -> None:
    """Until all has happened once: importing, training, validation and a save. The clock starts then."""
    while training.poll() is None and not marker.exists():
        time.sleep(0.2)


def tell(sample: Sample) -> None:
    print(
        f'{sample.seconds:7.0f} s  {sample.processes} processes  {sample.memory:7.1f} MB  '
        f'{sample.handles} open files  {sample.shared} shared tensors  {sample.threads} threads',
        flush=True,
    )


def end(training: subprocess.Popen[bytes]) -> None:
    """End the training and its workers; what it saves at a signal may take a moment."""
    below = psutil.Process(training.pid).children(recursive=True) if training.poll() is None else []
    training.terminate()
    try:
        training.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        training.kill()
        training.wait()
    for process in below:
        if process.is_running():
            process.kill()


if __name__ == '__main__':
    with exit_on_user_error():
        sys.exit(main())
