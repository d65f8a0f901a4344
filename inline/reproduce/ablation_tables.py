"""Tables, verdicts and figures of an ablation, from its measured runs and the published accuracies."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from inline.reproduce.ablation_runs import Cost, Outcome, latest_outcomes, read_costs, read_outcomes
from inline.reproduce.ablations import Ablation
from inline.reproduce.claims import (
    ACCURACY_CLAIMS,
    COLLISION_CLAIMS,
    HELD,
    INCONCLUSIVE,
    LOCALITY_CLAIMS,
    NOT_HELD,
    Claim,
    Comparison,
    compare_means,
    format_comparison,
)
from inline.reproduce.provenance import PROVENANCE, merge_columns
from inline.reproduce.tables import PAPER
from inline.utils.drawing import CHART_COLORS
from inline.utils.tables import format_seeds, read_csv, write_csv

NOT_MEASURED, NOT_COMPARABLE = 'not measured', 'not comparable: different training lengths'
# Points of top-1 below which single runs are taken as equal: on Tiny-ImageNet, the standard deviation over
# seeds is 0.1 to 0.3, and that of the sampling of 10,000 validation images 0.4.
ONE_SEED_MARGIN = 0.5
# Backbones of the published accuracies. Claims use the first one with a number for both rows.
_BACKBONES = ('DeiT-T', 'Swin-T')
# Rows of the paper's Table 9, in which InLine ranks first. Not all of its numbers were found.
_TABLE9 = ('softmax', 'linear', 'cosformer', 'nystrom', 'efficient', 'transnormer', 'flatten', 'mlla')
_BAR_COLOR, _DOT_COLOR = '#9dc3f2', '#1b4f8f'
_MARKERS = {'no': 'o', 'yes': 's', 'predicted': '^'}


@dataclass(frozen=True)
class Summary:
    """A row of the table: its runs over seeds, its cost, and published top-1 accuracies by backbone."""

    row: str
    title: str
    outcomes: tuple[Outcome, ...]
    cost: Cost | None
    published: Mapping[str, float]

    @property
    def accuracies(self) -> tuple[float, ...]:
        return tuple(outcome.accuracy for outcome in self.outcomes)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def schedules(self) -> tuple[str, ...]:
        """The training lengths of the runs, without repetitions."""
        return tuple(dict.fromkeys(outcome.schedule for outcome in self.outcomes))

    def values(self, quantity: str) -> list[float]:
        """Return the values of a field of :class:`Outcome` over seeds, without those not measured."""
        values = [getattr(outcome, quantity) for outcome in self.outcomes]
        return [value for value in values if value is not None]


def runs_file(folder: Path, ablation: Ablation, dataset: str) -> Path:
    """Return the file of the runs of a table in a folder of measured results."""
    return folder / f'ablation_{ablation.name}_{dataset}.csv'


def costs_file(folder: Path, ablation: Ablation, dataset: str) -> Path:
    """Return the file of the costs of a table in a folder of measured results."""
    return folder / f'ablation_{ablation.name}_{dataset}_costs.csv'


def read_summaries(folder: Path, ablation: Ablation, dataset: str) -> list[Summary]:
    """Return all rows of a table from a folder of measured results; rows may have no runs."""
    outcomes = read_outcomes(runs_file(folder, ablation, dataset))
    return summarize(
        ablation.choose_rows(dataset), outcomes, read_costs(costs_file(folder, ablation, dataset))
    )


def summarize(
    titles: Mapping[str, str], outcomes: Iterable[Outcome], costs: Iterable[Cost] = ()
) -> list[Summary]:
    """Return the rows in the order of the table, each with the newest run of every seed."""
    latest = sorted(latest_outcomes(outcomes), key=lambda outcome: outcome.seed)
    by_row = {cost.row: cost for cost in costs}
    published = _published()
    return [
        Summary(
            row,
            title,
            tuple(outcome for outcome in latest if outcome.row == row),
            by_row.get(row),
            published.get(row, {}),
        )
        for row, title in titles.items()
    ]


def _published() -> dict[str, dict[str, float]]:
    """Return the published ImageNet top-1 by row and backbone. A row is a lower-case name in table9.csv."""
    published: dict[str, dict[str, float]] = {}
    for line in read_csv(PAPER / 'table9.csv'):
        published.setdefault(line['attention'].lower(), {})[line['backbone']] = float(line['top1'])
    return published


def table_rows(summaries: Sequence[Summary]) -> list[list[str]]:
    """Return header and rows. Columns without any value are omitted."""
    ranks = _ranks({summary.row: summary.mean for summary in summaries if summary.outcomes})
    backbone = _BACKBONES[0]
    published = {s.row: s.published[backbone] for s in summaries if backbone in s.published}
    published_ranks = _ranks(published)
    columns: dict[str, list[str]] = {'attention': [summary.title for summary in summaries]}
    for summary in summaries:
        cost, runs = summary.cost, len(summary.outcomes)
        cells = {
            'convolution': cost.convolution if cost else '',
            'params (M)': f'{cost.params:.2f}' if cost else '',
            'FLOPs (G)': f'{cost.flops:.3f}' if cost else '',
            'ms/image': f'{cost.milliseconds:.2f}' if cost else '',
            'top-1 (%)': format_seeds(summary.accuracies),
            'rank': ranks.get(summary.row, '–'),
            'seeds × training': f'{runs} × {"; ".join(summary.schedules)}' if runs else NOT_MEASURED,
            'colliding pairs/image': _cell(summary.values('collisions')),
            'locality (%)': _cell(summary.values('locality')),
            'with local terms (%)': _cell(summary.values('locality_with_local')),
            **{f'{name}, ImageNet, published': _figure(summary, name) for name in _BACKBONES},
            f'rank, {backbone}, published': published_ranks.get(summary.row, ''),
        }
        for name, cell in cells.items():
            columns.setdefault(name, []).append(cell)
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    return [list(shown), *map(list, zip(*shown.values(), strict=True))]


def _ranks(values: Mapping[str, float]) -> dict[str, str]:
    ranked = sorted(values, key=lambda row: -values[row])
    return {row: str(rank) for rank, row in enumerate(ranked, start=1)}


def _cell(values: Sequence[float]) -> str:
    return format_seeds(values) if values else ''


def _figure(summary: Summary, backbone: str) -> str:
    return str(summary.published.get(backbone, ''))


def write_summaries(summaries: Sequence[Summary], path: Path) -> None:
    """Write the table as a CSV file, with the provenance of the runs of each row."""
    header, *rows = table_rows(summaries)
    lines = [
        {
            **dict(zip(header, cells, strict=True)),
            **merge_columns([outcome.provenance for outcome in summary.outcomes]),
        }
        for summary, cells in zip(summaries, rows, strict=True)
    ]
    write_csv(path, [*header, *PROVENANCE], lines)


def judge_ablation(ablation: Ablation, summaries: Sequence[Summary]) -> list[Claim]:
    """Return a verdict on every published claim about the rows, by fixed rules; none for other tables.

    With several seeds, two means differ if the difference exceeds two standard errors. With one seed the
    standard error is unknown: the verdict follows the sign and says so. Accuracies that differ by less than
    :data:`ONE_SEED_MARGIN` are then taken as equal.
    """
    rows = {summary.row: summary for summary in summaries}
    if ablation.name == 'components':
        comparisons = [*COLLISION_CLAIMS, *LOCALITY_CLAIMS, *ACCURACY_CLAIMS]
    elif ablation.name == 'baselines':
        comparisons = list(_ranking_claims(rows))
    else:
        comparisons = []
    return [_judge(comparison, rows) for comparison in comparisons]


def verdict_rows(ablation: Ablation, summaries: Sequence[Summary]) -> list[list[str]]:
    """Return header and rows: the claims, the measured values and the verdicts."""
    claims = judge_ablation(ablation, summaries)
    lines = [[claim.statement, claim.measured, claim.verdict] for claim in claims]
    return [['published', 'measured', 'verdict'], *lines]


def _ranking_claims(rows: Mapping[str, Summary]) -> Iterable[Comparison]:
    """Yield the published order of InLine and every other row."""
    inline = rows.get('inline')
    for other in rows.values():
        if inline is None or other is inline:
            continue
        backbone = next((b for b in _BACKBONES if b in inline.published and b in other.published), None)
        if backbone is not None:
            first, second = sorted((inline, other), key=lambda summary: -summary.published[backbone])
            numbers = f'{first.published[backbone]} vs {second.published[backbone]}'
            statement = f'{first.title} outperforms {second.title} ({backbone} on ImageNet: {numbers}).'
            yield Comparison(statement, 'accuracies', first.row, second.row)
        elif other.row in _TABLE9:
            statement = (
                f'InLine outperforms {other.title} (the paper ranks InLine first; no number was found).'
            )
            yield Comparison(statement, 'accuracies', 'inline', other.row)


def _judge(comparison: Comparison, rows: Mapping[str, Summary]) -> Claim:
    names = (comparison.larger, comparison.smaller)
    found = {name: rows[name] for name in names if name in rows}
    field = {'accuracies': 'accuracy'}.get(comparison.quantity, comparison.quantity)
    values = {name: summary.values(field) for name, summary in found.items()}
    if len(found) < len(names) or not all(values.values()):
        return Claim(comparison.statement, '–', NOT_MEASURED)
    titles = {name: summary.title for name, summary in found.items()}
    measured = format_comparison(comparison, values, titles)
    if len({summary.schedules for summary in found.values()}) > 1:
        return Claim(comparison.statement, measured, NOT_COMPARABLE)
    first, second = (values[name] for name in names)
    order = compare_means(first, second)
    if order is None:
        difference = statistics.fmean(first) - statistics.fmean(second)
        margin = ONE_SEED_MARGIN if field == 'accuracy' else 0
        order = 0 if abs(difference) < margin or not difference else 1 if difference > 0 else -1
    verdicts = {1: HELD, 0: HELD if comparison.ties else INCONCLUSIVE, -1: NOT_HELD}
    suffix = ', one seed' if min(len(first), len(second)) == 1 else ''
    return Claim(comparison.statement, measured, f'{verdicts[order]}{suffix}')


def draw_summaries(summaries: Sequence[Summary], title: str, out: Path) -> None:
    """Draw a bar for the mean of each measured row and a dot for each seed."""
    summaries = [summary for summary in summaries if summary.outcomes]
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
    _finish(figure, axes, title, out)


def draw_speed_accuracy(summaries: Sequence[Summary], title: str, out: Path) -> None:
    """Draw accuracy against time per image, for rows with both; the marker shows a convolution."""
    figure = Figure(figsize=(7.5, 5), layout='constrained')
    axes = figure.add_subplot()
    labels = []
    for summary in summaries:
        if summary.cost is None or not summary.outcomes:
            continue
        color = CHART_COLORS[0] if summary.row == 'inline' else '#555555'
        spread = statistics.stdev(summary.accuracies) if len(summary.outcomes) > 1 else None
        point = (summary.cost.milliseconds, summary.mean)
        axes.errorbar(
            *point,
            yerr=spread,
            fmt=_MARKERS[summary.cost.convolution],
            color=color,
            capsize=2,
            elinewidth=0.8,
        )
        labels.append(
            axes.annotate(summary.title, point, (7, -3), textcoords='offset points', color=color, fontsize=9)
        )
    for convolution, marker in _MARKERS.items():
        label = {'no': 'no convolution', 'yes': 'convolution', 'predicted': 'predicted convolution'}[
            convolution
        ]
        axes.plot([], [], marker, color='#555555', label=label)
    # Space for the names next to the outer points.
    axes.margins(x=0.3)
    axes.set(xlabel='inference, ms per image', ylabel='top-1 accuracy (%)')
    figure.legend(loc='outside lower center', ncols=len(_MARKERS), frameon=False, fontsize=9)
    _separate_labels(figure, labels)
    _finish(figure, axes, title, out)


def _separate_labels(figure: Figure, labels: Sequence[Annotation]) -> None:
    """Place every label next to its point, at the first position where it covers no point or other label."""
    figure.draw_without_rendering()
    points = [label.axes.transData.transform(label.xy) for label in labels if label.axes]
    occupied = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in points]
    positions = [(7 * side, shift - 3) for shift in (0, 10, -10, 20, -20, 30, -30) for side in (1, -1)]
    for label in labels:
        for x, y in positions:
            label.set(position=(x, y), horizontalalignment='left' if x > 0 else 'right')
            if not any(label.get_window_extent().overlaps(other) for other in occupied):
                break
        occupied.append(label.get_window_extent())


def _finish(figure: Figure, axes: Axes, title: str, out: Path) -> None:
    axes.set_title(title, loc='left', fontsize=11)
    axes.spines[['top', 'right']].set_visible(False)
    figure.savefig(out, dpi=150)
