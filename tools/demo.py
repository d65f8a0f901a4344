#!/usr/bin/env python
"""Train one InLine backbone for three tasks on the digit scenes, test each, and write a report.

The classifier is trained first; Mask R-CNN and SemanticFPN are fine-tuned from its weights, and Mask
R-CNN is also trained from scratch for as long, to show what pretraining gives. Interrupted, it goes on
where it stopped; what is done and unchanged is not done again.
"""

import time
from pathlib import Path

from inline.compat import prepare
from inline.errors import OneLineParser, exit_on_user_error

DATA = Path('data') / 'digit_scenes'


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument(
        '--work-dir', type=Path, default=Path('work_dirs/demo'), help='(default: %(default)s)'
    )
    parser.add_argument('--fresh', action='store_true', help='do everything again')
    args = parser.parse_args()
    prepare()
    from inline.datasets.digit_scenes import DigitScenesOptions, progress_bar, write_digit_scenes
    from inline.engine.runs import clock
    from inline.report import collect_results, compare_detection, format_table, write_csv, write_report

    started = time.monotonic()
    write_digit_scenes(DATA, DigitScenesOptions(), progress=progress_bar)
    train_and_test(args.work_dir, args.fresh)
    results = collect_results(args.work_dir)
    page = args.work_dir / 'report.html'
    write_report(results, page, describe_machine())
    write_csv(results, args.work_dir / 'results.csv')
    print(f'\n{format_table(results)}\n\n{compare_detection(results)}')
    print(f'report: {page} (took {clock(time.monotonic() - started)})')


def train_and_test(work_dir: Path, fresh: bool) -> None:
    """The classifier, then what starts from it; on two cores, two processes at a time.

    What an earlier demo did is done again if `fresh`.
    """
    from inline.engine.config import load_config
    from inline.engine.runs import ROOT, Run, run_all

    def run(name: str, config: str, pretrained: Path | None = None, processes: int = 1) -> Run:
        path = ROOT / 'configs' / 'digits' / f'{config}.py'
        batch = load_config(path).train_dataloader.batch_size
        made = Run(
            path,
            work_dir / name,
            pretrained=pretrained,
            processes=processes,
            options=(f'train_dataloader.batch_size={batch // processes}',),
            keep_predictions=True,
            depends_on=(DATA / 'meta.json').read_text(),
        )
        if fresh:
            made.forget()
        return made

    classifier = run('classification', 'inline-pvt-micro_digits', processes=2)
    run_all([classifier], width=1)
    weights = classifier.last_checkpoint()
    mask_rcnn, semantic_fpn = (f'{head}_inline-pvt-micro_digits' for head in ('mask-rcnn', 'semantic-fpn'))
    detectors = [run('detection', mask_rcnn, pretrained=weights), run('detection_scratch', mask_rcnn)]
    run_all(detectors, width=2)
    run_all([run('segmentation', semantic_fpn, pretrained=weights, processes=2)], width=1)


def describe_machine() -> dict[str, str]:
    from inline.engine import environment

    return {
        'Machine': environment.describe_hardware(processes=2),
        'Versions': environment.describe_versions(),
        'Commit': environment.describe_commit(),
        'Date': environment.today(),
        'Seed': '0 for the data and for every run',
    }


if __name__ == '__main__':
    with exit_on_user_error():
        main()
