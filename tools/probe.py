#!/usr/bin/env python
"""Train every mixer on two probe tasks: predict the length of a query, and the token to the right.

Prints a table and writes table.csv, probes.png and runs.csv, which has one line per run. An interrupted
command continues when it is started again: runs in runs.csv with the same settings are not repeated.
"""

import argparse
import os
from pathlib import Path

from inline.analysis.probe_runs import draw_probes, plan_runs, run_probes, summarize, table_rows
from inline.analysis.probes import MIXER_ROWS, PROBES, STEPS
from inline.utils.atomic import make_folder
from inline.utils.errors import OneLineParser, exit_on_user_error
from inline.utils.tables import align, write_csv


def main() -> None:
    args = parse_args()
    tasks, mixers = args.task or list(PROBES), args.mixer or list(MIXER_ROWS)
    runs = plan_runs(tasks, mixers, args.seeds, args.steps)
    tasks, mixers = ([*dict.fromkeys(names)] for names in (tasks, mixers))
    make_folder('--out', args.out)
    accuracies = summarize(run_probes(runs, args.out / 'runs.csv', args.workers))
    rows = table_rows(accuracies, tasks, mixers)
    write_csv(args.out / 'table.csv', rows[0], rows[1:])
    draw_probes(accuracies, tasks, mixers, args.out / 'probes.png')
    print(*align(rows, right=range(1, len(rows[0]))), sep='\n')
    print(f'seeds: {args.seeds}, steps: {args.steps}; wrote table.csv, probes.png and runs.csv to {args.out}')


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument('--task', nargs='+', metavar='NAME', help=f'{", ".join(PROBES)} (default: both)')
    parser.add_argument('--mixer', nargs='+', metavar='NAME', help=f'{", ".join(MIXER_ROWS)} (default: all)')
    parser.add_argument('--seeds', type=int, default=3, metavar='K', help='number of seeds (default: 3)')
    parser.add_argument(
        '--steps', type=int, default=STEPS, metavar='N', help='training steps (default: %(default)s)'
    )
    parser.add_argument(
        '--out', type=Path, default=Path('work_dirs/probes'), help='output folder (default: %(default)s)'
    )
    parser.add_argument(
        '--workers', type=int, default=cores, metavar='N', help='number of processes (default: all cores)'
    )
    return parser.parse_args()


if __name__ == '__main__':
    with exit_on_user_error():
        main()
