#!/usr/bin/env python
"""Score every attention on two small tasks: can it see the length of a query, and its neighbour?

Prints a table and writes it as table.csv and probes.png, beside runs.csv with every single training. Stopped,
it goes on when run again; what runs.csv has of the same settings is not trained twice.
"""

import argparse
import csv
import os
from pathlib import Path

from tqdm import tqdm

from inline.analysis.probe_runs import draw, perform, plan_runs, table_rows
from inline.analysis.probes import MIXER_ROWS, PROBES, STEPS
from inline.columns import align
from inline.errors import OneLineParser, exit_on_user_error
from inline.whole_files import make_folder


def main() -> None:
    args = parse_args()
    tasks, mixers = args.task or list(PROBES), args.mixer or list(MIXER_ROWS)
    runs = plan_runs(tasks, mixers, args.seeds, args.steps)
    tasks, mixers = ([*dict.fromkeys(names)] for names in (tasks, mixers))
    make_folder('--out', args.out)
    scores = perform(
        runs,
        args.out / 'runs.csv',
        args.workers,
        lambda done, total: tqdm(done, total=total, desc='probes', unit='training'),
    )
    rows = table_rows(scores, tasks, mixers)
    with (args.out / 'table.csv').open('w', newline='') as file:
        csv.writer(file, lineterminator='\n').writerows(rows)
    draw(scores, tasks, mixers, args.out / 'probes.png')
    print(*align(rows, right=range(1, len(rows[0]))), sep='\n')
    print(f'seeds: {args.seeds}, steps: {args.steps}; {args.out}: table.csv, probes.png, runs.csv')


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument('--task', nargs='+', metavar='NAME', help=f'{", ".join(PROBES)} (default: both)')
    parser.add_argument('--mixer', nargs='+', metavar='NAME', help=f'{", ".join(MIXER_ROWS)} (default: all)')
    parser.add_argument('--seeds', type=int, default=3, metavar='K', help='trainings of each (default: 3)')
    parser.add_argument(
        '--steps', type=int, default=STEPS, metavar='N', help='of a training (default: %(default)s)'
    )
    parser.add_argument(
        '--out', type=Path, default=Path('work_dirs/probes'), help='folder (default: %(default)s)'
    )
    parser.add_argument(
        '--workers', type=int, default=cores, metavar='N', help='processes (default: the cores there are)'
    )
    return parser.parse_args()


if __name__ == '__main__':
    with exit_on_user_error():
        main()
