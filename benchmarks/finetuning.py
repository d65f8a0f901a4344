"""Fine-tune InLine-PVT-micro on your data from scratch, from a digit classifier and from packaged weights.

python -m benchmarks.finetuning classification FOLDER --digits CHECKPOINT
python -m benchmarks.finetuning detection FOLDER --digits CHECKPOINT
python -m benchmarks.finetuning detection FOLDER --starts packaged    # after new packaged weights

Every start is trained with the same config and several seeds; the result is the last validation. Two runs
execute at a time. Finished runs are not repeated, and interrupted ones continue.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inline.checkpoints import check_checkpoint
from inline.openmmlab.patches import apply_patches
from inline.reproduce.generated_files import FINETUNING_COLUMNS, FINETUNING_STARTS
from inline.reproduce.measure import last_validation
from inline.reproduce.provenance import ROOT
from inline.reproduce.runs import NO_WEIGHTS, Run, run_all
from inline.reproduce.tables import BOX_AP, MEASURED, TOP1, Metric
from inline.utils.arguments import check_positive
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error
from inline.utils.tables import replace_rows


@dataclass(frozen=True)
class Task:
    """A config that fine-tunes the micro backbone, and its metric."""

    config: str
    metric: Metric


TASKS = {
    'classification': Task('inline-pvt-micro_image-folder', TOP1),
    'detection': Task('retinanet_inline-pvt-micro_coco-format', BOX_AP),
}


def main() -> None:
    parser = OneLineParser(description=__doc__.partition('\n')[0])
    parser.add_argument('task', choices=TASKS, help='what the data is annotated for')
    parser.add_argument('data', type=Path, help='folder with the images and annotations')
    parser.add_argument('--digits', type=Path, help='checkpoint of a digit classifier')
    parser.add_argument(
        '--starts', nargs='+', choices=FINETUNING_STARTS, default=FINETUNING_STARTS, help='(default: all)'
    )
    parser.add_argument('--seeds', type=int, default=3, help='number of seeds (default: %(default)s)')
    parser.add_argument(
        '--work-dir',
        type=Path,
        default=Path('work_dirs/finetuning'),
        help='folder for the runs (default: %(default)s)',
    )
    parser.add_argument(
        '--output',
        type=Path,
        default=MEASURED / 'finetuning.csv',
        help='CSV file to which the runs are added (default: %(default)s)',
    )
    args = parser.parse_args()
    check_positive('--seeds', args.seeds)
    starting_weights: dict[str, Path | str | None] = {'scratch': NO_WEIGHTS, 'packaged': None}
    if 'digits' in args.starts:
        if args.digits is None:
            raise UserError('--digits: the start from digits needs a checkpoint of a digit classifier')
        check_checkpoint(str(args.digits), '--digits')
        starting_weights['digits'] = args.digits
    apply_patches()
    task = TASKS[args.task]
    starts = {start: starting_weights[start] for start in args.starts}
    runs = plan_runs(task, args.data, starts, args.seeds, args.work_dir)
    keys = {run.folder: key for key, run in runs.items()}

    def record(run: Run) -> None:
        start, seed = keys[run.folder]
        add_line(
            args.output,
            {
                'dataset': args.data.name,
                'start': start,
                'seed': str(seed),
                **last_validation(run, task.metric),
            },
        )

    run_all(list(runs.values()), max_parallel=2, on_finish=record)


def plan_runs(
    task: Task, data: Path, starts: Mapping[str, Path | str | None], seeds: int, work_dir: Path
) -> dict[tuple[str, int], Run]:
    """Return the runs by start and seed.

    Args:
        task: What to train.
        data: Folder of the data.
        starts: Starting weights by name, as :attr:`Run.pretrained`.
        seeds: Number of seeds.
        work_dir: Parent of the work directories.
    """
    return {
        (start, seed): Run(
            ROOT / 'configs' / 'finetune' / f'{task.config}.py',
            work_dir / data.name / f'{start}_seed{seed}',
            pretrained=pretrained,
            data_root=str(data),
            options=(f'randomness.seed={seed}',),
            test=False,
        )
        for seed in range(seeds)
        for start, pretrained in starts.items()
    }


def add_line(path: Path, line: dict[str, str]) -> None:
    """Add a run to a CSV file, in place of an earlier one with the same data, start and seed."""
    replace_rows(path, FINETUNING_COLUMNS, ('dataset', 'start', 'seed'), [line])


if __name__ == '__main__':
    with exit_on_user_error():
        main()
