"""Verdicts on the paper's claims from small experiments, as HTML and Markdown."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from inline.analysis.probe_runs import ProbeRun
from inline.reproduce.ablations import ABLATIONS
from inline.reproduce.report.page import render_template
from inline.utils.errors import UserError
from inline.utils.tables import format_seeds, markdown_table, read_csv

_TEMPLATE = Path(__file__).with_name('claims.html')
COMPONENTS = ABLATIONS['components'].rows['digits']
# Two means count as different if they differ by more than this many standard errors.
_STANDARD_ERRORS = 2.0
HELD, NOT_HELD, INCONCLUSIVE = 'held', 'did not hold', 'inconclusive'
# Quantities that claims compare, by field of :class:`Evidence`.
QUANTITIES = {
    'accuracies': 'top-1 (%)',
    'collisions': 'colliding query pairs per image',
    'locality': 'share of attention in the 3×3 neighbourhood (%)',
}


class Comparison(NamedTuple):
    """A claim that a quantity of row `larger` exceeds that of row `smaller`, or with `ties` matches it."""

    statement: str
    quantity: str
    larger: str
    smaller: str
    ties: bool = False


COLLISION_CLAIMS = (
    Comparison(
        'Linear attention assigns the same weights to different queries more often than softmax does.',
        'collisions',
        'linear',
        'softmax',
    ),
    Comparison(
        'Normalisation by subtraction reduces the collisions of linear attention.',
        'collisions',
        'linear',
        'linear_injective',
    ),
)
LOCALITY_CLAIMS = (
    Comparison('Softmax attention is more local than linear attention.', 'locality', 'softmax', 'linear'),
)
ACCURACY_CLAIMS = (
    Comparison('Injectivity improves linear attention.', 'accuracies', 'linear_injective', 'linear'),
    Comparison('The local residual improves linear attention.', 'accuracies', 'linear_residual', 'linear'),
    Comparison('InLine is better than plain linear attention.', 'accuracies', 'inline', 'linear'),
    Comparison('InLine matches or exceeds softmax attention.', 'accuracies', 'inline', 'softmax', ties=True),
)


@dataclass(frozen=True)
class Evidence:
    """The measurements: a value per seed, by row of the components ablation or by mixer of the probes.

    Args:
        accuracies: Top-1 on digits in percent.
        collisions: Colliding query pairs per image, summed over layers and heads.
        locality: Share of attention in the 3×3 neighbourhood in percent, averaged over layers.
        locality_with_local: The same with the local terms of the mixer; empty for rows without local terms.
        uniform_locality: The same share for uniform attention.
        probes: Accuracies in percent by task and mixer.
        levels: Chance level and best possible accuracy in percent by task.
    """

    accuracies: Mapping[str, Sequence[float]]
    collisions: Mapping[str, Sequence[float]]
    locality: Mapping[str, Sequence[float]]
    locality_with_local: Mapping[str, Sequence[float]]
    uniform_locality: float
    probes: Mapping[tuple[str, str], Sequence[float]]
    levels: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, its measurement, and the verdict."""

    statement: str
    measured: str
    verdict: str


def judge(evidence: Evidence) -> list[Claim]:
    """Return a verdict on every claim, by fixed rules."""

    def compare(comparisons: Iterable[Comparison]) -> list[Claim]:
        return [_compare(comparison, getattr(evidence, comparison.quantity)) for comparison in comparisons]

    return [
        _judge_probe(
            evidence,
            'Linear attention cannot distinguish queries by length; softmax and InLine can.',
            'length',
            failing={'linear': 'Linear-relu'},
            passing={'softmax': 'Softmax', 'InLine': 'InLine'},
        ),
        *compare(COLLISION_CLAIMS),
        *compare(LOCALITY_CLAIMS),
        _judge_probe(
            evidence,
            'The local residual lets linear attention use neighbouring tokens.',
            'neighbour',
            failing={'without the residual': 'InLine-no-residual'},
            passing={'with it': 'InLine'},
        ),
        *compare(ACCURACY_CLAIMS),
    ]


def compare_means(first: Sequence[float], second: Sequence[float]) -> int | None:
    """Return 1 if the first mean is larger by more than two standard errors, -1 if smaller, otherwise 0.

    Return None if either has a single value, because the standard error is then unknown.
    """
    if min(len(first), len(second)) < 2:
        return None
    difference = statistics.fmean(first) - statistics.fmean(second)
    error = sum(statistics.variance(values) / len(values) for values in (first, second)) ** 0.5
    if abs(difference) <= _STANDARD_ERRORS * error:
        return 0
    return 1 if difference > 0 else -1


def read_accuracies(path: Path) -> dict[str, list[float]]:
    """Read results.csv of tools/ablate.py; return the accuracies of all seeds by row."""
    accuracies: dict[str, list[float]] = {}
    for line in read_csv(path):
        accuracies.setdefault(line['row'], []).append(float(line['top1']))
    return accuracies


def read_collisions(paths: Sequence[Path]) -> dict[str, list[float]]:
    """Read injectivity.csv of each seed; return colliding pairs per image (all layers and heads) by row."""
    collisions: dict[str, list[float]] = {row: [] for row in COMPONENTS}
    for lines in map(read_csv, paths):
        for row, title in COMPONENTS.items():
            layers = [line for line in lines if line['model'] == title]
            num_images = len({line['image'] for line in layers})
            collisions[row].append(sum(int(line['colliding pairs']) for line in layers) / num_images)
    return collisions


def read_locality(paths: Sequence[Path], column: str) -> dict[str, list[float]]:
    """Read a column of locality.csv of each seed; return its mean over layers by row. Cells may be empty."""
    shares: dict[str, list[float]] = {row: [] for row in COMPONENTS}
    for lines in map(read_csv, paths):
        for row, title in COMPONENTS.items():
            values = [float(line[column]) for line in lines if line['model'] == title and line[column]]
            shares[row] += [statistics.fmean(values)] if values else []
    return shares


def read_probes(
    path: Path, runs: Iterable[ProbeRun]
) -> tuple[dict[tuple[str, str], list[float]], dict[str, tuple[float, float]]]:
    """Read the scores of `runs` from runs.csv of tools/probe.py.

    Lines of other settings (fewer steps, another model) are ignored.

    Returns:
        Accuracies by task and mixer, and (chance, best possible) by task, in percent.
    """
    lines = read_csv(path)
    accuracies: dict[tuple[str, str], list[float]] = {}
    levels = {}
    for run in runs:
        settings = run.key().items()
        line = next((line for line in lines if line.items() >= settings), None)
        if line is None:
            raise UserError(f'{str(path)!r} has no result of {run}: run tools/probe.py with these settings')
        accuracies.setdefault((run.task, run.mixer), []).append(100 * float(line['accuracy']))
        levels[run.task] = (100 * float(line['chance']), 100 * float(line['best']))
    return accuracies, levels


def write_page(
    evidence: Evidence, figures: Mapping[str, Path], settings: Mapping[str, str], out: Path
) -> None:
    """Write one self-contained HTML file; `figures` are PNG files by caption."""
    claims = judge(evidence)
    page = render_template(
        _TEMPLATE,
        components=COMPONENTS,
        evidence=evidence,
        format_seeds=format_seeds,
        claims=claims,
        held=sum(claim.verdict == HELD for claim in claims),
        figures={caption: path.read_bytes() for caption, path in figures.items()},
        settings=settings,
    )
    out.write_text(page, encoding='utf-8')


def write_markdown(claims: Sequence[Claim], settings: Mapping[str, str], out: Path) -> None:
    """Write the verdicts as a Markdown table, with the settings below."""
    rows = [(claim.statement, claim.measured, claim.verdict) for claim in claims]
    table = markdown_table([('claim of the paper', 'measured', 'verdict'), *rows])
    details = '\n'.join(f'- {name}: {value}' for name, value in settings.items())
    out.write_text(f'# Claims of the paper, tested on digits\n\n{table}\n{details}\n', encoding='utf-8')


def _judge_probe(
    evidence: Evidence, statement: str, task: str, failing: Mapping[str, str], passing: Mapping[str, str]
) -> Claim:
    """Judge a claim about a probe. A mixer passes if every seed exceeds the midpoint of chance and best.

    Args:
        evidence: The measurements.
        statement: The claim.
        task: The probe task.
        failing: Mixers that should fail, by displayed name.
        passing: Mixers that should pass, by displayed name.
    """
    chance, best = evidence.levels[task]
    fails, passes = (
        {name: evidence.probes[task, mixer] for name, mixer in mixers.items()}
        for mixers in (failing, passing)
    )
    highest = max(max(values) for values in fails.values())
    lowest = min(min(values) for values in passes.values())
    means = ', '.join(
        f'{name} {statistics.fmean(values):.1f}' for name, values in {**fails, **passes}.items()
    )
    return Claim(
        statement,
        f'probe: {means} % (chance {chance:.0f}, best {best:.0f})',
        HELD if highest < (chance + best) / 2 < lowest else NOT_HELD,
    )


def _compare(comparison: Comparison, values: Mapping[str, Sequence[float]]) -> Claim:
    first, second = values[comparison.larger], values[comparison.smaller]
    verdicts = {1: HELD, 0: HELD if comparison.ties else INCONCLUSIVE, -1: NOT_HELD, None: INCONCLUSIVE}
    measured = format_comparison(comparison, values, COMPONENTS)
    return Claim(comparison.statement, measured, verdicts[compare_means(first, second)])


def format_comparison(
    comparison: Comparison, values: Mapping[str, Sequence[float]], titles: Mapping[str, str]
) -> str:
    """Return the quantity and its values, for example ``top-1 (%): InLine 95.4 ± 0.6, linear 87.2 ± 0.9``."""
    rows = (comparison.larger, comparison.smaller)
    means = ', '.join(f'{titles[row]} {format_seeds(values[row])}' for row in rows)
    return f'{QUANTITIES[comparison.quantity]}: {means}'
