"""The ablations: rows that differ in the attention alone, trained over several seeds and summed up."""

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inline.columns import with_spread
from inline.engine.logs import read_scalars, training_minutes
from inline.engine.runs import ROOT, Run
from inline.errors import UserError

METRIC = 'accuracy/top1'
DATASETS = {'digits': 'digits', 'imagenet': 'in1k'}
_KERNELS = {
    'identity': 'identity',
    'relu': 'relu',
    'leaky-relu': 'leaky relu',
    'affine-relu': 'relu(Ax + b)',
    'exp': 'exp',
}
# Sides of windows on the first map, which has 56 tokens a side at 224 pixels and 16 on the digits.
_WINDOWS = {'digits': (2, 4, 8, 16), 'imagenet': (7, 14, 28, 56)}


@dataclass(frozen=True)
class Ablation:
    """A table: what it compares, where in the paper it stands, and its rows by the name of their config."""

    name: str
    title: str
    paper: str
    rows: Mapping[str, Mapping[str, str]]

    def config(self, dataset: str, row: str) -> Path:
        return ROOT / 'configs' / 'ablations' / self.name / DATASETS[dataset] / f'{row}.py'


def _same(rows: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    return dict.fromkeys(DATASETS, rows)


ABLATIONS = {
    ablation.name: ablation
    for ablation in (
        Ablation(
            'parts',
            'InLine taken apart',
            'its two properties, one by one',
            _same(
                {
                    'softmax': 'softmax',
                    'linear': 'linear',
                    'linear_injective': 'linear + injectivity',
                    'linear_residual': 'linear + residual',
                    'inline': 'InLine',
                }
            ),
        ),
        Ablation(
            'rivals',
            'attentions in a DeiT',
            'Table 9',
            _same(
                {
                    'softmax': 'softmax',
                    'linear': 'linear',
                    'cosformer': 'cosFormer',
                    'nystrom': 'Nyströmformer',
                    'efficient': 'Efficient Attention',
                    'transnormer': 'TransNormer',
                    'flatten': 'FLatten',
                    'mlla': 'MLLA',
                    'inline': 'InLine',
                }
            ),
        ),
        Ablation(
            'kernels',
            'kernels in a Swin, divided and injective, without residual',
            'Tables 1, 3 and 10',
            _same(
                {
                    f'{kernel}{suffix}': f'{title}, {kind}'
                    for kernel, title in _KERNELS.items()
                    for suffix, kind in (('', 'divided'), ('_injective', 'injective'))
                }
            ),
        ),
        Ablation(
            'windows',
            'windows in a Swin, with and without residual',
            'Table 4',
            {
                dataset: {
                    f'window-{side}{suffix}': f'window {side}, {kind}'
                    for side in sides
                    for suffix, kind in (('', 'no residual'), ('_residual', 'residual'))
                }
                for dataset, sides in _WINDOWS.items()
            },
        ),
    )
}


@dataclass(frozen=True)
class Outcome:
    """One training of a row."""

    row: str
    seed: int
    accuracy: float
    minutes: float


@dataclass(frozen=True)
class Summary:
    """A row over its seeds: mean, and spread as the standard deviation (none of a single seed)."""

    row: str
    title: str
    mean: float
    spread: float | None
    accuracies: tuple[float, ...]


def find_ablation(name: str) -> Ablation:
    if name not in ABLATIONS:
        raise UserError(f'unknown table {name!r}: choose one of {", ".join(ABLATIONS)}')
    return ABLATIONS[name]


def plan(
    ablation: Ablation,
    dataset: str,
    seeds: int,
    folder: Path,
    *,
    data_root: str | None = None,
    processes: int = 1,
    options: Sequence[str] = (),
) -> dict[tuple[str, int], Run]:
    """The trainings of a table, by row and seed."""
    return {
        (row, seed): Run(
            ablation.config(dataset, row),
            folder / f'{row}_seed{seed}',
            data_root=data_root,
            processes=processes,
            options=(f'randomness.seed={seed}', *options),
            test=False,
        )
        for seed in range(seeds)
        for row in ablation.rows[dataset]
    }


def collect(runs: Mapping[tuple[str, int], Run]) -> list[Outcome]:
    """What the finished trainings reached at their last validation."""
    outcomes = []
    for (row, seed), run in runs.items():
        records = read_scalars(run.folder)
        accuracies = [record[METRIC] for record in records if METRIC in record]
        if not accuracies:
            raise UserError(f'{run.name} logged no {METRIC}: see {run.folder}')
        outcomes.append(Outcome(row, seed, accuracies[-1], training_minutes(records) or 0.0))
    return outcomes


def summarise(titles: Mapping[str, str], outcomes: Sequence[Outcome]) -> list[Summary]:
    """The rows in the order of the table."""
    summaries = []
    for row, title in titles.items():
        values = tuple(outcome.accuracy for outcome in outcomes if outcome.row == row)
        spread = statistics.stdev(values) if len(values) > 1 else None
        summaries.append(Summary(row, title, statistics.fmean(values), spread, values))
    return summaries


def write_csv(outcomes: Sequence[Outcome], path: Path) -> None:
    with path.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(['row', 'seed', 'top1', 'minutes'])
        for outcome in outcomes:
            writer.writerow([outcome.row, outcome.seed, f'{outcome.accuracy:.2f}', f'{outcome.minutes:.2f}'])


def markdown(summaries: Sequence[Summary]) -> str:
    """A table with the rank of each row; ± is the standard deviation over seeds."""
    ranked = sorted(summaries, key=lambda summary: -summary.mean)
    lines = ['| attention | top-1 (%) | rank |', '| --- | --- | --- |']
    lines += [f'| {s.title} | {format_mean(s)} | {ranked.index(s) + 1} |' for s in summaries]
    return '\n'.join(lines) + '\n'


def format_mean(summary: Summary) -> str:
    return with_spread(summary.mean, summary.spread)
