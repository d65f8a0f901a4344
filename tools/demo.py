#!/usr/bin/env python
"""Train one InLine backbone for three tasks on the digit scenes, test each, and write a report.

The classifier is trained first; Mask R-CNN and SemanticFPN are fine-tuned from its weights, and Mask
R-CNN is also trained from scratch for as long, to show what pretraining gives. Interrupted, it goes on
where it stopped; what is done and unchanged is not done again.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from inline.compat import prepare
from inline.datasets.digit_scenes import DigitScenesOptions, write_digit_scenes
from inline.engine.config import load_config
from inline.errors import OneLineParser, UserError, exit_on_user_error
from inline.report import collect_results, compare_detection, format_table, write_csv, write_report

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / 'configs' / 'digits'
DATA = Path('data') / 'digit_scenes'
POLL_SECONDS = 10


@dataclass(frozen=True)
class Run:
    """One training and its test."""

    name: str
    config: Path
    pretrained: bool = False
    processes: int = 1


CLASSIFICATION = Run('classification', CONFIGS / 'inline-pvt-micro_digits.py', processes=2)
MASK_RCNN = CONFIGS / 'mask-rcnn_inline-pvt-micro_digits.py'
# Runs of one row go side by side. One thread a process: where two of them share a core by accident,
# threads that wait for each other would be many times slower.
PLAN = [
    [CLASSIFICATION],
    [Run('detection', MASK_RCNN, pretrained=True), Run('detection_scratch', MASK_RCNN)],
    [Run('segmentation', CONFIGS / 'semantic-fpn_inline-pvt-micro_digits.py', pretrained=True, processes=2)],
]


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument(
        '--work-dir', type=Path, default=Path('work_dirs/demo'), help='(default: %(default)s)'
    )
    parser.add_argument('--fresh', action='store_true', help='do everything again')
    args = parser.parse_args()
    prepare()
    started = time.monotonic()
    make_data()
    if args.fresh:
        shutil.rmtree(args.work_dir, ignore_errors=True)
    for row in PLAN:
        run_side_by_side(row, args.work_dir)
    results = collect_results(args.work_dir)
    page = args.work_dir / 'report.html'
    write_report(results, page, describe_machine())
    write_csv(results, args.work_dir / 'results.csv')
    print(f'\n{format_table(results)}\n\n{compare_detection(results)}')
    print(f'report: {page} (took {clock(time.monotonic() - started)})')


def make_data() -> None:
    write_digit_scenes(
        DATA,
        DigitScenesOptions(),
        progress=lambda drawn, total: tqdm(drawn, total=total, desc='digit scenes', unit='image'),
    )


def run_side_by_side(runs: Sequence[Run], work_dir: Path) -> None:
    waiting = [run for run in runs if not is_done(run, work_dir)]
    for step in ('train', 'test'):
        processes = {run: start(run, step, work_dir) for run in waiting}
        try:
            watch(processes, step, work_dir)
        finally:
            for process in processes.values():
                process.terminate()
    for run in waiting:
        (work_dir / run.name / 'done').write_text(fingerprint(run, work_dir))


def is_done(run: Run, work_dir: Path) -> bool:
    """Whether the run is finished; what an earlier, different version of it left is removed."""
    folder = work_dir / run.name
    identity = fingerprint(run, work_dir)
    if (folder / 'done').is_file() and (folder / 'done').read_text() == identity:
        print(f'{run.name}: done already (--fresh does everything again)', flush=True)
        return True
    if not (folder / 'begun').is_file() or (folder / 'begun').read_text() != identity:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / 'begun').write_text(identity)
    return False


def fingerprint(run: Run, work_dir: Path) -> str:
    """What the run's outcome depends on: its settings, its data, and the weights it starts from."""
    parts = [load_config(run.config).dump(), (DATA / 'meta.json').read_text()]
    if run.pretrained:
        parts.append((work_dir / CLASSIFICATION.name / 'done').read_text())
    return hashlib.sha256('\n'.join(parts).encode()).hexdigest()


def start(run: Run, step: str, work_dir: Path) -> subprocess.Popen[bytes]:
    folder = work_dir / run.name
    if step == 'train':
        words = [sys.executable, ROOT / 'tools' / 'train.py', run.config, '--work-dir', folder, '--resume']
        if run.pretrained:
            words += ['--pretrained', last_checkpoint(work_dir / CLASSIFICATION.name)]
        if run.processes > 1:
            batch = load_config(run.config).train_dataloader.batch_size
            words[:2] = ['bash', ROOT / 'tools' / 'dist_train.sh']
            words.insert(3, str(run.processes))
            words += ['--cfg-options', f'train_dataloader.batch_size={batch // run.processes}']
    else:
        words = [sys.executable, ROOT / 'tools' / 'test.py', run.config, last_checkpoint(folder)]
        words += ['--work-dir', folder / 'test', '--out', folder / 'test' / 'predictions.pkl']
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHON': sys.executable}
    with (folder / f'{step}.log').open('wb') as log:
        return subprocess.Popen([str(word) for word in words], stdout=log, stderr=log, env=environment)


def last_checkpoint(folder: Path) -> Path:
    return Path((folder / 'last_checkpoint').read_text().strip())


def watch(processes: dict[Run, subprocess.Popen[bytes]], step: str, work_dir: Path) -> None:
    """Tell how far each run is until all have ended; a run that failed ends the demo with its last lines."""
    totals = {run: load_config(run.config).train_cfg.max_iters for run in processes}
    for run in processes:
        print(f'{run.name}: {step}ing, log in {work_dir / run.name / f"{step}.log"}', flush=True)
    while any(process.poll() is None for process in processes.values()):
        next_report = time.monotonic() + POLL_SECONDS
        while time.monotonic() < next_report and any(
            process.poll() is None for process in processes.values()
        ):
            time.sleep(0.2)
        for run, process in processes.items():
            if step == 'train' and process.poll() is None:
                tell_progress(run, totals[run], work_dir)
    for run, process in processes.items():
        if process.returncode:
            log = work_dir / run.name / f'{step}.log'
            print('\n'.join(log.read_text(errors='replace').splitlines()[-20:]), file=sys.stderr)
            raise UserError(f'{run.name}: {step}ing ended with exit code {process.returncode}, see {log}')


def tell_progress(run: Run, total: int, work_dir: Path) -> None:
    logs = sorted((work_dir / run.name).glob('*/vis_data/scalars.json'))
    lines = logs[-1].read_text().splitlines() if logs else []
    steps = [entry for entry in map(json.loads, lines) if 'loss' in entry]
    if steps:
        step = steps[-1]['step']
        left = (total - step) * steps[-1]['time']
        print(
            f'  {run.name:<18} {step:>5}/{total}  loss {steps[-1]["loss"]:.3f}  eta {clock(left)}', flush=True
        )


def clock(seconds: float) -> str:
    return f'{int(seconds) // 60}:{int(seconds) % 60:02d}'


def describe_machine() -> dict[str, str]:
    commit = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=ROOT, capture_output=True, text=True)
    packages = (
        'torch',
        'onedl-mmengine',
        'onedl-mmcv',
        'onedl-mmpretrain',
        'onedl-mmdetection',
        'onedl-mmsegmentation',
    )
    return {
        'Machine': f'{platform.machine()}, {os.cpu_count()} cores, no GPU used',
        'Versions': ', '.join(f'{package} {version(package)}' for package in packages),
        'Commit': commit.stdout.strip() or 'not a git checkout',
        'Date': date.today().isoformat(),
        'Seed': '0 for the data and for every run',
    }


if __name__ == '__main__':
    with exit_on_user_error():
        main()
