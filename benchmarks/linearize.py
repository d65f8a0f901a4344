"""Linearise a softmax classifier: accuracy after each phase, and time of both models at several image sizes.

python -m benchmarks.linearize phases CONFIG --from CHECKPOINT
python -m benchmarks.linearize times CONFIG

The phases get a fifth of the epochs of the config, and so does an InLine model from scratch. Two runs execute
at a time. Finished runs are not repeated, and interrupted ones continue.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from inline.benchmark.flops import build_runnable
from inline.benchmark.hardware import describe_machine, prepare_for_timing
from inline.benchmark.timing import interleave, interquartile_range, make_inference
from inline.checkpoints import check_checkpoint
from inline.engine.config import load_config
from inline.engine.flags import add_data_root
from inline.engine.logs import read_test_metrics, scaled
from inline.openmmlab.patches import apply_patches
from inline.reproduce.generated_files import LINEARIZE_COLUMNS
from inline.reproduce.linearize import Linearization, default_epochs, student_config
from inline.reproduce.measure import last_validation
from inline.reproduce.provenance import provenance_columns
from inline.reproduce.runs import Run, call, run_all
from inline.reproduce.tables import MEASURED, TOP1
from inline.utils.arguments import check_positive
from inline.utils.atomic import make_folder
from inline.utils.environment import describe_environment
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error
from inline.utils.tables import format_table, write_csv

TIME_COLUMNS = ('side', 'softmax ms', 'InLine ms', 'speedup', 'spread', 'repetitions', 'conditions')


def main() -> None:
    args = parse_args()
    apply_patches()
    results = make_folder('--results', args.results)
    if args.what == 'phases':
        rows = list(compare(args))
        write_csv(results / 'linearize.csv', LINEARIZE_COLUMNS, rows)
        shown: Sequence[str] = ('model', 'epochs', 'top1')
    else:
        rows = list(time_models(load_config(args.config), args.sizes, args.repetitions))
        write_csv(results / 'linearize_times.csv', TIME_COLUMNS, rows)
        shown = TIME_COLUMNS[:-1]
    print(format_table(shown, [[row[column] for column in shown] for row in rows]))


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=('phases', 'times'), help='what to measure')
    parser.add_argument('config', help='config of the softmax classifier')
    parser.add_argument(
        '--from', dest='weights', metavar='CHECKPOINT', help='phases: weights of the softmax model'
    )
    parser.add_argument(
        '--epochs', type=int, help='phases: epochs of both together (default: a fifth of the config)'
    )
    parser.add_argument(
        '--sizes',
        type=int,
        nargs='+',
        default=[64, 256, 1024],
        help='times: sides in pixels (default: 64 256 1024)',
    )
    parser.add_argument(
        '--repetitions', type=int, default=5, help='times: repetitions (default: %(default)s)'
    )
    parser.add_argument(
        '--work-dir', type=Path, default=Path('work_dirs/linearize_phases'), help='(default: %(default)s)'
    )
    parser.add_argument(
        '--results', type=Path, default=MEASURED, help='folder of the CSV files (default: %(default)s)'
    )
    add_data_root(parser)
    args = parser.parse_args()
    for flag, values in (
        ('sizes', args.sizes),
        ('repetitions', [args.repetitions]),
        ('epochs', [args.epochs]),
    ):
        for value in values:
            check_positive(f'--{flag}', value)
    if args.what == 'phases':
        if args.weights is None:
            parser.error('phases needs the weights of the softmax model: --from CHECKPOINT')
        check_checkpoint(args.weights, '--from')
    return args


def compare(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Yield a line per model: teacher, exchange of the mixers alone, after each phase, from scratch."""
    epochs = args.epochs or default_epochs(load_config(args.config))
    if epochs < 2:
        raise UserError(f'{epochs} epoch for two phases: give at least 2 with --epochs')
    matching = epochs // 2
    weights = Path(args.weights).resolve()
    paths = Linearization(args.config, str(weights), args.work_dir, match_epochs=matching).write_configs()
    swapped = args.work_dir / 'swapped.pth'
    save_swapped(load_config(paths['distill']), swapped)

    def run(name: str, config: Path, length: int, options: Sequence[str] = ()) -> Run:
        return Run(
            config,
            args.work_dir / name,
            data_root=args.data_root,
            options=tuple(options),
            flags=('--epochs', str(length)),
            test=False,
        )

    teacher = run('teacher', Path(load_config(args.config).filename), 0)
    yield describe('softmax, the teacher', 0, test(teacher, weights))
    yield describe(
        'InLine mixers, teacher weights, no training', 0, test(run('swapped', paths['student'], 0), swapped)
    )
    matched = run('matched', paths['match'], matching)
    distilled = run('distilled', paths['distill'], epochs)
    scratch = run('scratch', paths['student'], epochs)
    run_all([matched, distilled, scratch], max_parallel=2)
    both = run('both', paths['distill'], epochs - matching, [f'load_from={matched.last_checkpoint()}'])
    run_all([both], max_parallel=1)
    for title, trained, length in (
        ('phase 1: mixers matched', matched, matching),
        ('phase 1, then phase 2: distillation', both, epochs),
        ('phase 2 alone', distilled, epochs),
        ('InLine from scratch', scratch, epochs),
    ):
        line = last_validation(trained, TOP1)
        yield describe(title, length, {'top1': line.pop('value'), **line})


def save_swapped(distill: Config, path: Path) -> None:
    """Save the student as the distillation starts it: the teacher's weights where names and shapes match."""
    init_default_scope(distill.default_scope)
    model = MODELS.build(distill.model)
    model.copy_teacher()
    torch.save({'state_dict': model.state_dict()}, path)


def test(run: Run, checkpoint: Path) -> dict[str, str]:
    """Return top-1 of a checkpoint from tools/test.py, with its provenance."""
    provenance = provenance_columns(run.config, run.inputs(checkpoint), [describe_environment(1)])
    call(run.test_command(checkpoint), f'testing {checkpoint.name}')
    value = scaled(read_test_metrics(run.folder / 'test'), TOP1.key, TOP1.scale)
    if value is None:
        raise UserError(f'the test of {checkpoint} wrote no top-1: see {run.folder / "test"}')
    return {'top1': f'{value:.2f}', **provenance}


def describe(title: str, epochs: int, measured: dict[str, str]) -> dict[str, str]:
    line = {'model': title, 'epochs': str(epochs), **measured}
    return {column: line.get(column, '') for column in LINEARIZE_COLUMNS}


def time_models(cfg: Config, sides: Sequence[int], repetitions: int) -> Iterator[dict[str, str]]:
    """Yield the CPU time of softmax and of InLine for one image of each size, measured alternately."""
    prepare_for_timing(threads=1)
    device = torch.device('cpu')
    conditions = f'{describe_machine(device)}; CPU time, threads: 1, float32, batch: 1'
    for side in sides:
        runs = {}
        for name, model in (('softmax', cfg), ('InLine', student_config(cfg, None))):
            sized = Config(
                {
                    **model._cfg_dict,
                    'model': {**model.model, 'backbone': {**model.model.backbone, 'img_size': side}},
                }
            )
            network, forward = build_runnable(sized, (side, side))
            network.eval()
            runs[name] = make_inference(forward, torch.randn(1, 3, side, side))
        timings = interleave(runs, repetitions, device, time.process_time)
        ratios = timings['InLine'].speedups(timings['softmax'])
        yield {
            'side': str(side),
            'softmax ms': f'{timings["softmax"].median * 1e3:.1f}',
            'InLine ms': f'{timings["InLine"].median * 1e3:.1f}',
            'speedup': f'{timings["InLine"].speedup(timings["softmax"]):.2f}',
            'spread': f'{interquartile_range(ratios):.2f}',
            'repetitions': str(repetitions),
            'conditions': conditions,
        }


if __name__ == '__main__':
    with exit_on_user_error():
        main()
