#!/usr/bin/env python
"""Train the rows of an ablation, over several seeds, and sum them up in a table and a figure.

parts: InLine's two properties one by one. rivals: InLine and the other linear attentions (Table 9).
kernels: kernels divided and injective (Tables 1, 3, 10). windows: sides of windows, with and without the
local residual (Table 4). Stopped, it goes on when run again; what is done and unchanged is not done twice.
"""

import argparse
import os
from pathlib import Path

from inline.compat import prepare
from inline.errors import OneLineParser, UserError, exit_on_user_error


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('table', help='parts, rivals, kernels or windows')
    parser.add_argument(
        '--dataset', default='digits', choices=('digits', 'imagenet'), help='(default: %(default)s)'
    )
    parser.add_argument('--seeds', type=int, default=1, metavar='K', help='trainings a row (default: 1)')
    parser.add_argument(
        '--rows', nargs='+', metavar='ROW', help='only these rows, by the name of their config'
    )
    parser.add_argument(
        '--side-by-side',
        type=int,
        metavar='N',
        help='trainings at a time (default: one a core, one on a GPU)',
    )
    parser.add_argument('--nproc', type=int, default=1, help='processes of one training (default: 1)')
    parser.add_argument('--data-root', default=os.environ.get('INLINE_DATA_ROOT'), metavar='FOLDER')
    parser.add_argument('--cfg-options', nargs='+', default=[], metavar='KEY=VALUE')
    parser.add_argument(
        '--out', type=Path, metavar='FOLDER', help='(default: work_dirs/ablations/TABLE_DATASET)'
    )
    args = parser.parse_args()
    for flag in ('seeds', 'side_by_side', 'nproc'):
        value = getattr(args, flag)
        if value is not None and value < 1:
            raise UserError(f'--{flag.replace("_", "-")} {value}: must be at least 1')
    prepare()
    ablate(args)


def ablate(args: argparse.Namespace) -> None:
    import torch

    from inline.engine.runs import run_all
    from inline.reproduce.ablations import collect, find_ablation, markdown, plan, summarise, write_csv
    from inline.reproduce.figures import draw_summaries

    ablation = find_ablation(args.table)
    titles = dict(ablation.rows[args.dataset])
    for row in args.rows or ():
        if row not in titles:
            raise UserError(f'table {args.table!r} has no row {row!r}: choose from {", ".join(titles)}')
    if args.rows:
        titles = {row: titles[row] for row in titles if row in args.rows}
    out = args.out or Path('work_dirs') / 'ablations' / f'{ablation.name}_{args.dataset}'
    runs = plan(
        ablation,
        args.dataset,
        args.seeds,
        out,
        data_root=args.data_root,
        processes=args.nproc,
        options=args.cfg_options,
    )
    runs = {key: run for key, run in runs.items() if key[0] in titles}
    width = 1 if torch.cuda.is_available() or args.nproc > 1 else os.cpu_count() or 1
    run_all(list(runs.values()), args.side_by_side or width)
    outcomes = collect(runs)
    summaries = summarise(titles, outcomes)
    write_csv(outcomes, out / 'results.csv')
    (out / 'table.md').write_text(markdown(summaries))
    draw_summaries(summaries, f'{ablation.title} ({args.dataset}, seeds: {args.seeds})', out / 'figure.png')
    print(
        f'\n{markdown(summaries)}\nfrom {args.seeds} seeds; written: {out}/results.csv, table.md, figure.png'
    )


if __name__ == '__main__':
    with exit_on_user_error():
        main()
