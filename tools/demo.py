#!/usr/bin/env python
"""Train an InLine backbone for three tasks on the digit scenes, test each model, and write a report.

A classifier is trained first. Mask R-CNN and Semantic FPN are then fine-tuned from the packaged weights,
which were pretrained on Tiny-ImageNet, and also trained from scratch for the same number of iterations, to
show the effect of pretraining. After an interruption the demo resumes; finished runs are not repeated.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from inline.openmmlab.patches import apply_patches
from inline.utils.errors import OneLineParser, exit_on_user_error

if TYPE_CHECKING:
    from inline.reproduce.runs import Run

DATA = Path('data') / 'digit_scenes'


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument(
        '--work-dir',
        type=Path,
        default=Path('work_dirs/demo'),
        help='folder for runs and report (default: %(default)s)',
    )
    parser.add_argument('--fresh', action='store_true', help='discard finished runs and start again')
    args = parser.parse_args()
    apply_patches()
    from inline.datasets.digits.scenes import DigitScenesOptions, write_digit_scenes
    from inline.reproduce.report import (
        collect_results,
        compare_starts,
        format_table,
        write_csv,
        write_report,
    )
    from inline.reproduce.runs import format_minutes

    started = time.monotonic()
    write_digit_scenes(DATA, DigitScenesOptions(), show_progress=True)
    runs = train_and_test(args.work_dir, args.fresh)
    results = collect_results(args.work_dir)
    page = args.work_dir / 'report.html'
    write_report(results, page, describe_run())
    provenance = {run.name: run.provenance() for run in runs}
    write_csv(results, provenance, args.work_dir / 'results.csv')
    sentences = '\n'.join(compare_starts(results))
    print(f'\n{format_table(results)}\n\n{sentences}')
    print(f'report: {page} (took {format_minutes(time.monotonic() - started)})')


def train_and_test(work_dir: Path, fresh: bool) -> 'list[Run]':
    """Train and test the classifier, then the detectors and the segmentors, with two processes at a time.

    Args:
        work_dir: Folder for the runs.
        fresh: Discard the runs of an earlier demo.
    """
    from inline.checkpoints.sources import find_packaged
    from inline.engine.config import load_config
    from inline.reproduce.report.results import SCRATCH
    from inline.reproduce.runs import ROOT, Run, run_all

    def run(name: str, config: str, pretrained: Path | None = None, processes: int = 1) -> Run:
        path = ROOT / 'configs' / 'digits' / f'{config}.py'
        batch = load_config(path).train_dataloader.batch_size
        created = Run(
            path,
            work_dir / name,
            pretrained=pretrained,
            processes=processes,
            options=(f'train_dataloader.batch_size={batch // processes}',),
            keep_predictions=True,
        )
        if fresh:
            created.delete()
        return created

    classifier = run('classification', 'inline-pvt-micro_digits', processes=2)
    run_all([classifier], max_parallel=1)
    weights = find_packaged('inline_pvt_micro')
    others = [
        run(f'{task}{suffix}', f'{head}_inline-pvt-micro_digits', pretrained=pretrained)
        for task, head in (('detection', 'mask-rcnn'), ('segmentation', 'semantic-fpn'))
        for suffix, pretrained in (('', weights), (SCRATCH, None))
    ]
    run_all(others, max_parallel=2)
    return [classifier, *others]


def describe_run() -> dict[str, str]:
    from inline.utils.environment import describe_environment

    environment = {name.capitalize(): value for name, value in describe_environment(processes=2).items()}
    return {**environment, 'Seed': '0 for the data and for every run'}


if __name__ == '__main__':
    with exit_on_user_error():
        main()
