"""Reproduce the paper's tables: list rows, show a row, or run rows.

`run` tests the given weights, or with --train trains and then tests, as `inline train` and `inline test` do.
Each result is added to results/measured/TABLE.csv with commit, hardware, versions, date and digests of
config, data and starting weights, and is compared with the expected number. Interrupted runs resume;
finished ones are not repeated.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from inline.engine.flags import add_data_root
from inline.openmmlab.patches import apply_patches
from inline.utils.arguments import check_positive
from inline.utils.errors import OneLineParser, UserError
from inline.utils.resources import MEASURED_RESULTS, ROOT, format_tool
from inline.utils.tables import align

if TYPE_CHECKING:
    from inline.reproduce.tables import Row

UNKNOWN = '–'


def main() -> None:
    args = parse_args()
    apply_patches()
    {'list': list_rows, 'show': show_row, 'run': run_rows}[args.action](args)


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest='action', required=True, metavar='list|show|run')
    listing = actions.add_parser('list', help='list the rows of one table or of all')
    listing.add_argument('--table', help='imagenet, coco, ade20k or digits (default: all)')
    show = actions.add_parser('show', help='show the metrics of a row and the commands to measure it')
    show.add_argument('--table', required=True, help='imagenet, coco, ade20k or digits')
    show.add_argument('--row', required=True, help='a row of the table')
    run = actions.add_parser('run', help='measure one or more rows, or the complete table')
    run.add_argument('--table', required=True, help='imagenet, coco, ade20k or digits')
    run.add_argument('--row', action='append', help='a row of the table; can be repeated (default: all)')
    run.add_argument(
        '--weights',
        type=Path,
        metavar='CHECKPOINT',
        help='checkpoint to test; with --train, pretrained weights of the backbone',
    )
    run.add_argument('--train', action='store_true', help='train before the test')
    add_data_root(run)
    run.add_argument('--nproc', type=int, default=1, help='processes, usually one per GPU (default: 1)')
    run.add_argument('--amp', action='store_true', help='train with mixed precision')
    run.add_argument(
        '--auto-scale-lr', action='store_true', help='scale the learning rate with the total batch size'
    )
    run.add_argument(
        '--cfg-options', nargs='+', default=[], metavar='KEY=VALUE', help='override settings of the config'
    )
    run.add_argument('--again', action='store_true', help='repeat measurements that are already recorded')
    run.add_argument(
        '--work-dir',
        type=Path,
        default=Path('work_dirs/reproduce'),
        help='folder for the runs (default: %(default)s)',
    )
    for action in (listing, show, run):
        action.add_argument(
            '--results',
            type=Path,
            default=MEASURED_RESULTS,
            metavar='FOLDER',
            help='folder of the measured results (default: results/measured)',
        )
    return parser.parse_args()


def list_rows(args: argparse.Namespace) -> None:
    from inline.reproduce.measure import find_measured
    from inline.reproduce.tables import TABLES, find_table

    for table in [find_table(args.table)] if args.table else TABLES.values():
        lines = [['row', 'config', 'weights to test', 'starting weights', 'expected', 'measured']]
        for row in table.rows.values():
            lines.append(
                [
                    row.name,
                    str(row.config.relative_to(ROOT)),
                    f'checkpoints/{row.released}.pth' if row.released else 'yours',
                    row.starts_from or 'none',
                    format_metrics(row, row.expected),
                    format_metrics(row, find_measured(row, args.results) or {}),
                ]
            )
        print(table.name, *align(lines), '', sep='\n')


def show_row(args: argparse.Namespace) -> None:
    from inline.reproduce.measure import read_measured
    from inline.reproduce.tables import find_table

    row = find_table(args.table).row(args.row)
    config = row.config.relative_to(ROOT)
    print(f'row       {row.name} of table {row.table.name}')
    print(f'config    {config}')
    print(
        f'expected  {format_metrics(row, row.expected)}' + (f' (source: {row.source})' if row.source else '')
    )
    for line in read_measured(row.table, args.results):
        if line['row'] == row.name:
            origin = f'{line["how"]} on {line["date"]}, commit {line["commit"]}'
            print(f'measured  {format_metrics(row, line)} ({origin})')
    convert = format_tool('convert_checkpoint', 'convert')
    command = f'{format_tool("reproduce", "reproduce")} run --table {row.table.name} --row {row.name}'
    if row.released:
        weights = f'checkpoints/{row.released}.pth'
        print(f'test      {convert} {row.released} {weights}')
        print(f'          {command} --weights {weights}')
    else:
        print(f'test      {command} --weights YOURS.pth')
    if row.starts_from:
        print(f'train     (starts from {row.starts_from}: {convert} creates it)')
        print(f'          {command} --train --nproc 8')
    else:
        print(f'train     {command} --train' + ('' if row.table.name == 'digits' else ' --nproc 8'))


def run_rows(args: argparse.Namespace) -> None:
    from inline.reproduce.measure import Request, measure
    from inline.reproduce.tables import find_table

    table = find_table(args.table)
    rows = [table.row(name) for name in args.row or table.rows]
    if args.weights is not None and len(rows) > 1:
        raise UserError(f'--weights needs exactly one --row: choose one of {", ".join(table.rows)}')
    check_positive('--nproc', args.nproc)
    request = Request(
        train=args.train,
        weights=args.weights,
        data_root=args.data_root,
        processes=args.nproc,
        flags=tuple(
            flag for flag, wanted in (('--amp', args.amp), ('--auto-scale-lr', args.auto_scale_lr)) if wanted
        ),
        options=tuple(args.cfg_options),
        again=args.again,
        work_dir=args.work_dir,
        results=args.results,
    )
    lines = [['row', 'metric', 'expected', 'measured', 'difference']]
    for row in rows:
        lines += compare(row, measure(row, request))
    print('', *align(lines), f'all runs: {args.results / f"{table.name}.csv"}', sep='\n')


def compare(row: 'Row', measured: Mapping[str, str]) -> list[list[str]]:
    """Return a line per metric: row, metric, expected, measured, difference."""
    lines = []
    for metric in row.metrics:
        expected, value = row.expected.get(metric.column), float(measured[metric.column])
        comparison = [UNKNOWN, f'{value:.2f}', UNKNOWN]
        if expected is not None:
            comparison = [f'{expected:.2f}', f'{value:.2f}', f'{value - expected:+.2f}']
        lines.append([row.name, metric.title, *comparison])
    return lines


def format_metrics(row: 'Row', values: Mapping[str, object]) -> str:
    """Format known metrics, for example ``box AP 43.4, mask AP 39.1``."""
    known = [(m.title, values[m.column]) for m in row.metrics if values.get(m.column) not in (None, '')]
    return ', '.join(f'{title} {value}' for title, value in known) or UNKNOWN
