"""Ablations: rows that differ only in the attention, trained with several seeds and averaged."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from inline.engine.logs import read_scalars, training_minutes
from inline.reproduce.provenance import PROVENANCE, ROOT, merge_columns
from inline.reproduce.runs import Run
from inline.utils.arguments import check_choice
from inline.utils.errors import UserError
from inline.utils.tables import format_mean_std, write_csv

METRIC = 'accuracy/top1'
DATASETS = {'digits': 'digits', 'imagenet': 'in1k'}
# Earlier names, still accepted on the command line.
ALIASES = {'parts': 'components', 'rivals': 'baselines'}
_BAR_COLOR, _DOT_COLOR = '#9dc3f2', '#1b4f8f'


@dataclass(frozen=True)
class Ablation:
    """An ablation table.

    Args:
        name: Name on the command line, and of the folder below configs/ablations/.
        title: Title of the table.
        rows: Row titles by config name, for each dataset.
    """

    name: str
    title: str
    rows: Mapping[str, Mapping[str, str]]

    def config(self, dataset: str, row: str) -> Path:
        return ROOT / 'configs' / 'ablations' / self.name / DATASETS[dataset] / f'{row}.py'


_COMPONENTS = {
    'softmax': 'softmax',
    'linear': 'linear',
    'linear_injective': 'linear + injectivity',
    'linear_residual': 'linear + residual',
    'inline': 'InLine',
}
_BASELINES = {
    'softmax': 'softmax',
    'linear': 'linear',
    'cosformer': 'cosFormer',
    'nystrom': 'Nyströmformer',
    'efficient': 'Efficient Attention',
    'transnormer': 'TransNormer',
    'flatten': 'FLatten',
    'mlla': 'MLLA',
    'agent': 'Agent Attention',
    'polaformer': 'PolaFormer',
    'rala': 'RALA',
    'mala': 'MALA',
    'mhla': 'MHLA',
    'circulant': 'Circulant Attention',
    'inline': 'InLine',
}
_KERNELS = {
    f'{kernel}{suffix}': f'{title}, {normalization}'
    for kernel, title in (
        ('identity', 'identity'),
        ('relu', 'relu'),
        ('leaky-relu', 'leaky relu'),
        ('affine-relu', 'relu(Ax + b)'),
        ('exp', 'exp'),
    )
    for suffix, normalization in (('', 'divided'), ('_injective', 'injective'))
}
# Window sizes on the first feature map, which is 16×16 tokens on digits and 56×56 at 224 pixels.
_WINDOWS = {
    dataset: {
        f'window-{size}{suffix}': f'window {size}, {residual}'
        for size in sizes
        for suffix, residual in (('', 'no residual'), ('_residual', 'residual'))
    }
    for dataset, sizes in (('digits', (2, 4, 8, 16)), ('imagenet', (7, 14, 28, 56)))
}
ABLATIONS = {
    'components': Ablation(
        'components', 'components of InLine attention', dict.fromkeys(DATASETS, _COMPONENTS)
    ),
    'baselines': Ablation('baselines', 'attention mechanisms in a DeiT', dict.fromkeys(DATASETS, _BASELINES)),
    'kernels': Ablation(
        'kernels',
        'kernels in a Swin, normalised by division or injective, without residual',
        dict.fromkeys(DATASETS, _KERNELS),
    ),
    'windows': Ablation('windows', 'window sizes in a Swin, with and without residual', _WINDOWS),
}


@dataclass(frozen=True)
class Outcome:
    """Result of one run of a row: accuracy in percent, minutes, and provenance columns."""

    row: str
    seed: int
    accuracy: float
    minutes: float
    provenance: Mapping[str, str]


@dataclass(frozen=True)
class Summary:
    """Results of a row over its seeds: accuracies in percent, and merged provenance columns."""

    title: str
    accuracies: tuple[float, ...]
    provenance: Mapping[str, str]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)


def format_seeds(values: Sequence[float]) -> str:
    """Format mean ± standard deviation over seeds, only the value for one seed, a dash for none."""
    if not values:
        return '–'
    return format_mean_std(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def find_ablation(name: str) -> Ablation:
    name = ALIASES.get(name, name)
    check_choice('unknown table', name, ABLATIONS)
    return ABLATIONS[name]


def plan_runs(
    ablation: Ablation,
    dataset: str,
    seeds: int,
    folder: Path,
    *,
    data_root: str | None = None,
    processes: int = 1,
    options: Sequence[str] = (),
) -> dict[tuple[str, int], Run]:
    """Return the runs of a table by row and seed."""
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


def collect_outcomes(runs: Mapping[tuple[str, int], Run]) -> list[Outcome]:
    """Return the results of finished runs, from the last validation of each."""
    outcomes = []
    for (row, seed), run in runs.items():
        records = read_scalars(run.folder)
        accuracies = [record[METRIC] for record in records if METRIC in record]
        if not accuracies:
            raise UserError(f'{run.name} logged no {METRIC}: see {run.folder}')
        minutes = training_minutes(records) or 0.0
        outcomes.append(Outcome(row, seed, accuracies[-1], minutes, run.provenance()))
    return outcomes


def summarize(titles: Mapping[str, str], outcomes: Sequence[Outcome]) -> list[Summary]:
    """Return the rows in the order of the table."""
    summaries = []
    for row, title in titles.items():
        seeds = [outcome for outcome in outcomes if outcome.row == row]
        accuracies = tuple(outcome.accuracy for outcome in seeds)
        summaries.append(Summary(title, accuracies, merge_columns([outcome.provenance for outcome in seeds])))
    return summaries


def write_outcomes(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write a CSV file with one line per run."""
    lines = [
        {
            'row': outcome.row,
            'seed': str(outcome.seed),
            'top1': f'{outcome.accuracy:.2f}',
            'minutes': f'{outcome.minutes:.2f}',
            **outcome.provenance,
        }
        for outcome in outcomes
    ]
    write_csv(path, ['row', 'seed', 'top1', 'minutes', *PROVENANCE], lines)


def write_summaries(summaries: Sequence[Summary], path: Path) -> None:
    """Write a CSV file with one line per row of the table, in the format of results/measured/."""
    header, *rows = table_rows(summaries)
    lines = [
        {**dict(zip(header, cells, strict=True)), **summary.provenance}
        for summary, cells in zip(summaries, rows, strict=True)
    ]
    write_csv(path, [*header, *PROVENANCE], lines)


def table_rows(summaries: Sequence[Summary]) -> list[list[str]]:
    """Return header and rows with the mean accuracy ± standard deviation over seeds, and the rank."""
    ranked = sorted(summaries, key=lambda summary: -summary.mean)
    rows = [[row.title, format_seeds(row.accuracies), str(ranked.index(row) + 1)] for row in summaries]
    return [['attention', 'top-1 (%)', 'rank'], *rows]


def draw_summaries(summaries: Sequence[Summary], title: str, out: Path) -> None:
    """Draw a bar for the mean of each row and a dot for each seed."""
    figure = Figure(figsize=(7, 1.2 + 0.38 * len(summaries)), layout='constrained')
    axes = figure.add_subplot()
    for y, summary in enumerate(summaries):
        axes.barh(y, summary.mean, color=_BAR_COLOR, height=0.7)
        axes.plot(summary.accuracies, [y] * len(summary.accuracies), 'o', color=_DOT_COLOR, markersize=4)
        axes.annotate(
            format_seeds(summary.accuracies),
            (max(summary.accuracies), y),
            xytext=(6, 0),
            textcoords='offset points',
            va='center',
        )
    axes.set_yticks(range(len(summaries)), [summary.title for summary in summaries])
    axes.invert_yaxis()
    # Leave space for the numbers to the right of the bars.
    axes.set_xlim(0, 1.18 * max(max(summary.accuracies) for summary in summaries))
    axes.set_xlabel('top-1 accuracy (%); dots are seeds')
    axes.set_title(title, loc='left', fontsize=11)
    axes.spines[['top', 'right']].set_visible(False)
    figure.savefig(out, dpi=150)
