"""Train the rows of an ablation with several seeds and summarise them in a table and a figure.

components: injectivity and local residual separately. baselines: InLine and other attention (Table 9).
kernels: kernel functions, normalised by division or injective (Tables 1, 3, 10). windows: window sizes with
and without the local residual (Table 4). Interrupted runs resume; runs that are finished, or whose result
is in --results already, are not repeated. Every finished run is added to a CSV file at once, so that a
partial table can be shown with --summarize.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from inline.engine.flags import add_data_root
from inline.openmmlab.patches import apply_patches
from inline.utils.arguments import check_positive
from inline.utils.errors import OneLineParser, UserError
from inline.utils.resources import MEASURED_RESULTS

if TYPE_CHECKING:
    from inline.reproduce.ablation_tables import Summary
    from inline.reproduce.ablations import Ablation


def main() -> None:
    args = parse_args()
    apply_patches()
    ablate(args)


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('table', help='components, baselines, kernels or windows')
    parser.add_argument(
        '--dataset',
        default='digits',
        choices=('digits', 'tiny-imagenet', 'imagenet'),
        help='(default: %(default)s)',
    )
    parser.add_argument(
        '--seeds',
        type=int,
        metavar='K',
        help='seeds per row (default: 3 for baselines on digits, 2 for components on tiny-imagenet, else 1)',
    )
    parser.add_argument('--rows', nargs='+', metavar='ROW', help='train only these rows (config names)')
    parser.add_argument(
        '--jobs',
        '--side-by-side',
        type=int,
        metavar='N',
        help='number of runs in parallel (default: one per CPU core, or 1 with a GPU)',
    )
    parser.add_argument('--nproc', type=int, default=1, help='processes per run (default: 1)')
    add_data_root(parser)
    parser.add_argument(
        '--cfg-options', nargs='+', default=[], metavar='KEY=VALUE', help='override settings of the configs'
    )
    parser.add_argument(
        '--out',
        type=Path,
        metavar='FOLDER',
        help='output folder (default: work_dirs/ablations/TABLE_DATASET)',
    )
    parser.add_argument(
        '--results',
        type=Path,
        metavar='FOLDER',
        help='add each finished run to the measured results in this folder, such as results/measured',
    )
    parser.add_argument(
        '--summarize',
        action='store_true',
        help='train nothing: summarise the runs in --results (default: results/measured)',
    )
    args = parser.parse_args()
    for flag in ('seeds', 'jobs', 'nproc'):
        check_positive(f'--{flag}', getattr(args, flag))
    return args


def ablate(args: argparse.Namespace) -> None:
    import torch

    from inline.reproduce import ablation_runs, ablation_tables
    from inline.reproduce.ablations import find_ablation, plan_runs
    from inline.reproduce.runs import run_all
    from inline.utils.atomic import make_folder

    ablation = find_ablation(args.table)
    titles = ablation.choose_rows(args.dataset, args.rows)
    out = make_folder('--out', args.out or Path('work_dirs/ablations') / f'{ablation.name}_{args.dataset}')
    if args.summarize:
        summaries = ablation_tables.read_summaries(args.results or MEASURED_RESULTS, ablation, args.dataset)
        write_results(ablation, args.dataset, summaries, out)
        return
    if args.results:
        make_folder('--results', args.results)
    runs = plan_runs(
        ablation,
        args.dataset,
        args.seeds or ablation.seeds.get(args.dataset, 1),
        out,
        data_root=args.data_root,
        processes=args.nproc,
        options=args.cfg_options,
        rows=titles,
    )
    measured = ablation_runs.MeasuredRuns(
        {run.folder: key for key, run in runs.items()},
        out / 'results.csv',
        args.results and ablation_tables.runs_file(args.results, ablation, args.dataset),
    )
    default_parallel = 1 if torch.cuda.is_available() or args.nproc > 1 else os.cpu_count() or 1
    waiting = []
    for run in runs.values():
        if measured.recall(run):
            print(f'{run.name}: already measured', flush=True)
        else:
            waiting.append(run)
    run_all(waiting, args.jobs or default_parallel, measured.record)
    costs = ablation_runs.measure_costs({row: ablation.config(args.dataset, row) for row in titles})
    ablation_runs.write_costs(costs, out / 'costs.csv')
    summaries = ablation_tables.summarize(titles, measured.outcomes, costs)
    if args.results:
        ablation_runs.write_costs(costs, ablation_tables.costs_file(args.results, ablation, args.dataset))
        summaries = ablation_tables.read_summaries(args.results, ablation, args.dataset)
    write_results(ablation, args.dataset, summaries, out)


def write_results(ablation: 'Ablation', dataset: str, summaries: 'list[Summary]', out: Path) -> None:
    """Write the table, the verdicts and the figures, and print the first two."""
    from inline.reproduce import ablation_tables
    from inline.utils.tables import markdown_table

    if not any(summary.outcomes for summary in summaries):
        raise UserError(f'no measured runs of {ablation.name!r} on {dataset!r}: train without --summarize')
    table = markdown_table(ablation_tables.table_rows(summaries))
    verdicts = markdown_table(ablation_tables.verdict_rows(ablation, summaries))
    ablation_tables.write_summaries(summaries, out / 'table.csv')
    (out / 'table.md').write_text(f'{table}\n{verdicts}')
    title = f'{ablation.title} ({dataset})'
    ablation_tables.draw_summaries(summaries, title, out / 'figure.png')
    ablation_tables.draw_speed_accuracy(summaries, title, out / 'speed_accuracy.png')
    print(f'\n{table}\n{verdicts}\nwritten to {out}: table.csv, table.md, figure.png, speed_accuracy.png')
