"""Train the rows of an ablation with several seeds and summarise them in a table and a figure.

components: injectivity and local residual separately. baselines: InLine and other mechanisms (Table 9).
kernels: kernel functions, normalised by division or injective (Tables 1, 3, 10). windows: window sizes with
and without the local residual (Table 4). Interrupted runs resume; finished ones are not repeated.
"""

import argparse
import os
from pathlib import Path

from inline.engine.flags import add_data_root
from inline.openmmlab.patches import apply_patches
from inline.utils.arguments import check_positive
from inline.utils.errors import OneLineParser, UserError


def main() -> None:
    args = parse_args()
    apply_patches()
    ablate(args)


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('table', help='components, baselines, kernels or windows')
    parser.add_argument(
        '--dataset', default='digits', choices=('digits', 'imagenet'), help='(default: %(default)s)'
    )
    parser.add_argument('--seeds', type=int, default=1, metavar='K', help='seeds per row (default: 1)')
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
    args = parser.parse_args()
    for flag in ('seeds', 'jobs', 'nproc'):
        check_positive(f'--{flag}', getattr(args, flag))
    return args


def ablate(args: argparse.Namespace) -> None:
    import torch

    from inline.reproduce import ablations
    from inline.reproduce.generated_files import markdown_table
    from inline.reproduce.runs import run_all

    ablation = ablations.find_ablation(args.table)
    titles = dict(ablation.rows[args.dataset])
    for row in args.rows or ():
        if row not in titles:
            raise UserError(f'table {ablation.name!r} has no row {row!r}: choose from {", ".join(titles)}')
    if args.rows:
        titles = {row: titles[row] for row in titles if row in args.rows}
    out = args.out or Path('work_dirs') / 'ablations' / f'{ablation.name}_{args.dataset}'
    runs = ablations.plan_runs(
        ablation,
        args.dataset,
        args.seeds,
        out,
        data_root=args.data_root,
        processes=args.nproc,
        options=args.cfg_options,
    )
    runs = {key: run for key, run in runs.items() if key[0] in titles}
    default_parallel = 1 if torch.cuda.is_available() or args.nproc > 1 else os.cpu_count() or 1
    run_all(list(runs.values()), args.jobs or default_parallel)
    outcomes = ablations.collect_outcomes(runs)
    summaries = ablations.summarize(titles, outcomes)
    table = markdown_table(ablations.table_rows(summaries))
    ablations.write_outcomes(outcomes, out / 'results.csv')
    ablations.write_summaries(summaries, out / 'table.csv')
    (out / 'table.md').write_text(table)
    title = f'{ablation.title} ({args.dataset}, seeds: {args.seeds})'
    ablations.draw_summaries(summaries, title, out / 'figure.png')
    print(f'\n{table}\nseeds: {args.seeds}; written to {out}: results.csv, table.csv, table.md, figure.png')
