#!/usr/bin/env python
"""Test the claims of the paper: two probe tasks, five attention mechanisms on digits, and a report.

Runs tools/probe.py, tools/ablate.py components and tools/analyze.py, then writes report.html and claims.md.
Interrupted runs resume; finished ones are not repeated.
"""

import argparse
import sys
import time
from itertools import chain
from pathlib import Path

from inline.openmmlab.patches import apply_patches
from inline.utils.arguments import check_positive
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error

DATA = Path('data') / 'digit_scenes'


def main() -> None:
    args = parse_args()
    apply_patches()
    from inline.datasets.digits.scenes import DigitScenesOptions, write_digit_scenes

    started = time.monotonic()
    if args.data_root is None:
        write_digit_scenes(DATA, DigitScenesOptions(), show_progress=True)
    elif not (Path(args.data_root) / DATA.name).is_dir():
        # Check early: the probes run for minutes before the first training run would fail.
        raise UserError(f'--data-root {args.data_root!r} has no folder {DATA.name!r}: omit it to create one')
    measure(args)
    write_results(args, time.monotonic() - started)


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--work-dir', type=Path, default=Path('work_dirs/claims'), help='output folder (default: %(default)s)'
    )
    parser.add_argument('--seeds', type=int, default=3, metavar='K', help='seeds per row (default: 3)')
    parser.add_argument('--images', type=int, default=40, help='images to analyse per model (default: 40)')
    parser.add_argument(
        '--data-root',
        metavar='FOLDER',
        help='folder that contains digit_scenes (default: create it in data/)',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        default=[],
        metavar='KEY=VALUE',
        help='override settings of the training runs on digits',
    )
    parser.add_argument(
        '--probe-steps', type=int, metavar='N', help='training steps of a probe (default: as tools/probe.py)'
    )
    args = parser.parse_args()
    check_positive('--seeds', args.seeds)
    check_positive('--images', args.images)
    check_positive('--probe-steps', args.probe_steps)
    return args


def measure(args: argparse.Namespace) -> None:
    """Run the three tools one after another."""
    from inline.reproduce.ablations import ABLATIONS, plan_runs
    from inline.reproduce.claims import COMPONENTS
    from inline.reproduce.provenance import ROOT
    from inline.reproduce.runs import call

    def tool(name: str, *words: object) -> None:
        call([sys.executable, str(ROOT / 'tools' / name), *map(str, words)], f'tools/{name}')

    folder = args.work_dir
    data = ['--data-root', args.data_root] if args.data_root else []
    options = ['--cfg-options', *args.cfg_options] if args.cfg_options else []
    steps = ['--steps', args.probe_steps] if args.probe_steps else []
    components = folder / 'components'
    tool('probe.py', '--seeds', args.seeds, '--out', folder / 'probes', *steps)
    tool('ablate.py', 'components', '--seeds', args.seeds, '--out', components, *data, *options)
    runs = plan_runs(ABLATIONS['components'], 'digits', args.seeds, components)
    for seed, out in enumerate(analysis_folders(args)):
        models = [(runs[row, seed].config, runs[row, seed].last_checkpoint()) for row in COMPONENTS]
        words = [
            *chain(*models), '--label', *COMPONENTS.values(), '--images', args.images, '--out', out, *data
        ]  # fmt: skip
        for analysis in ('injectivity', 'locality'):
            tool('analyze.py', analysis, *words)


def analysis_folders(args: argparse.Namespace) -> list[Path]:
    """Return the output folder of the analysis for each seed."""
    return [args.work_dir / 'analysis' / f'seed{seed}' for seed in range(args.seeds)]


def write_results(args: argparse.Namespace, seconds: float) -> None:
    from inline.analysis.probe_runs import plan_runs
    from inline.analysis.probes import MIXER_ROWS, PROBES, STEPS
    from inline.reproduce import claims
    from inline.reproduce.runs import format_minutes
    from inline.utils.environment import describe_environment

    folder = args.work_dir
    probe_runs = plan_runs(list(PROBES), list(MIXER_ROWS), args.seeds, args.probe_steps or STEPS)
    probes, levels = claims.read_probes(folder / 'probes' / 'runs.csv', probe_runs)
    locality = [seed / 'locality.csv' for seed in analysis_folders(args)]
    uniform = claims.read_locality(locality, 'chance (%)')
    evidence = claims.Evidence(
        accuracies=claims.read_accuracies(folder / 'components' / 'results.csv'),
        collisions=claims.read_collisions([seed / 'injectivity.csv' for seed in analysis_folders(args)]),
        locality=claims.read_locality(locality, 'attention (%)'),
        locality_with_local=claims.read_locality(locality, 'with local terms (%)'),
        uniform_locality=uniform['softmax'][0],
        probes=probes,
        levels=levels,
    )
    first = analysis_folders(args)[0]
    probe_figure = folder / 'probes' / 'probes.png'
    figures = {
        'Probes: accuracy of every mixer, with chance level and best possible accuracy': probe_figure,
        'Accuracy on digits': folder / 'components' / 'figure.png',
        'Colliding queries, models of seed 0': first / 'injectivity.png',
        'Locality of attention per layer, models of seed 0': first / 'locality.png',
    }
    settings = {
        **{name.capitalize(): value for name, value in describe_environment().items()},
        'Seeds': f'0 to {args.seeds - 1}',
        'Duration': f'{format_minutes(seconds)} minutes, not counting results of earlier runs',
    }
    verdicts = claims.judge(evidence)
    claims.write_page(evidence, figures, settings, folder / 'report.html')
    claims.write_markdown(verdicts, settings, folder / 'claims.md')
    for claim in verdicts:
        print(f'{claim.verdict:>12}: {claim.statement} ({claim.measured})')
    print(f'report: {folder / "report.html"} (took {format_minutes(seconds)})')


if __name__ == '__main__':
    with exit_on_user_error():
        main()
