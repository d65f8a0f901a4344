#!/usr/bin/env python
"""Try the paper's claims at home: two probes, five attentions on digits, and one page with the verdicts.

Runs tools/probe.py, tools/ablate.py parts and tools/analyze.py, and writes report.html. Stopped, it goes on
when run again; what is done and unchanged is not done twice.
"""

import argparse
import sys
import time
from itertools import chain
from pathlib import Path

from inline.compat import prepare
from inline.errors import OneLineParser, UserError, exit_on_user_error

DATA = Path('data') / 'digit_scenes'


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--work-dir', type=Path, default=Path('work_dirs/claims'), help='(default: %(default)s)'
    )
    parser.add_argument('--seeds', type=int, default=3, metavar='K', help='trainings a row (default: 3)')
    parser.add_argument('--images', type=int, default=40, help='a model is analysed on (default: 40)')
    parser.add_argument('--data-root', metavar='FOLDER', help='digit scenes made before (default: made here)')
    parser.add_argument(
        '--cfg-options', nargs='+', default=[], metavar='KEY=VALUE', help='for the trainings on digits'
    )
    parser.add_argument('--probe-steps', type=int, metavar='N', help='steps of a probe (default: its own)')
    args = parser.parse_args()
    for flag, value in (('seeds', args.seeds), ('images', args.images), ('probe-steps', args.probe_steps)):
        if value is not None and value < 1:
            raise UserError(f'--{flag} {value}: must be at least 1')
    prepare()
    from inline.datasets.digit_scenes import DigitScenesOptions, progress_bar, write_digit_scenes

    started = time.monotonic()
    if args.data_root is None:
        write_digit_scenes(DATA, DigitScenesOptions(), progress=progress_bar)
    elif not (Path(args.data_root) / DATA.name).is_dir():
        # The probes before the first training take minutes.
        raise UserError(
            f'--data-root {args.data_root!r} has no folder {DATA.name!r}: leave it out to make one'
        )
    measure(args)
    write(args, time.monotonic() - started)


def measure(args: argparse.Namespace) -> None:
    """The three tools one after another, each as a user would call it."""
    from inline.engine.runs import ROOT, call
    from inline.reproduce.ablations import ABLATIONS, plan
    from inline.reproduce.claims import PARTS

    def tool(name: str, *words: object) -> None:
        call([sys.executable, str(ROOT / 'tools' / name), *map(str, words)], f'tools/{name}')

    folder = args.work_dir
    data = ['--data-root', args.data_root] if args.data_root else []
    options = ['--cfg-options', *args.cfg_options] if args.cfg_options else []
    steps = ['--steps', args.probe_steps] if args.probe_steps else []
    tool('probe.py', '--seeds', args.seeds, '--out', folder / 'probes', *steps)
    tool('ablate.py', 'parts', '--seeds', args.seeds, '--out', folder / 'parts', *data, *options)
    runs = plan(ABLATIONS['parts'], 'digits', args.seeds, folder / 'parts')
    for seed, out in enumerate(analysis_folders(args)):
        models = [(runs[row, seed].config, runs[row, seed].last_checkpoint()) for row in PARTS]
        words = [*chain(*models), '--label', *PARTS.values(), '--images', args.images, '--out', out, *data]
        for analysis in ('injectivity', 'locality'):
            tool('analyze.py', analysis, *words)


def analysis_folders(args: argparse.Namespace) -> list[Path]:
    """What is measured of the trained models, by seed."""
    return [args.work_dir / 'analysis' / f'seed{seed}' for seed in range(args.seeds)]


def write(args: argparse.Namespace, seconds: float) -> None:
    from inline.engine import environment
    from inline.engine.runs import clock
    from inline.reproduce import claims

    folder = args.work_dir
    probes, levels = claims.read_probes(folder / 'probes' / 'runs.csv')
    evidence = claims.Evidence(
        claims.read_outcomes(folder / 'parts' / 'results.csv'),
        [claims.read_collisions(seed / 'injectivity.csv') for seed in analysis_folders(args)],
        [claims.read_locality(seed / 'locality.csv') for seed in analysis_folders(args)],
        probes,
        levels,
    )
    first = analysis_folders(args)[0]
    figures = {
        'Probes: accuracy of every mixer, with chance and the best possible': folder
        / 'probes'
        / 'probes.png',
        'Accuracy on digits': folder / 'parts' / 'figure.png',
        'Collisions of queries, models of seed 0': first / 'injectivity.png',
        'Locality of attention, layer by layer, models of seed 0': first / 'locality.png',
    }
    settings = {
        'Machine': environment.describe_hardware(),
        'Versions': environment.describe_versions(),
        'Commit': environment.describe_commit(),
        'Date': environment.today(),
        'Seeds': f'0 to {args.seeds - 1}',
        'Took': f'{clock(seconds)} minutes, without what an earlier run had done',
    }
    page = folder / 'report.html'
    claims.write_page(evidence, figures, settings, page)
    for claim in claims.judge(evidence):
        print(f'{claim.verdict:>30}: {claim.statement} ({claim.measured})')
    print(f'report: {page} (took {clock(seconds)})')


if __name__ == '__main__':
    with exit_on_user_error():
        main()
