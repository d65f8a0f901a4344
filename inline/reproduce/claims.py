"""The paper's argument as statements that a few measurements can hold or refute, and their page."""

import base64
import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from inline.reproduce.ablations import ABLATIONS, Outcome, Summary, format_mean, summarise

_TEMPLATE = Path(__file__).with_name('claims.html')
PARTS = ABLATIONS['parts'].rows['digits']
_ROWS = {title: row for row, title in PARTS.items()}
# Means must differ by this many standard errors to be told apart.
_ERRORS = 2.0
# Of one model each, figures closer than this share of the larger are not told apart.
_CLOSE = 0.1
HELD, REFUTED, OPEN = 'held here', 'did not hold here', 'no difference to be seen here'


@dataclass(frozen=True)
class Evidence:
    """What was measured: by row of the table of parts and by mixer of the probes.

    Args:
        outcomes: Accuracies of the trainings on digits, in percent.
        collisions: Mean number of colliding pairs of queries an image, over all layers and heads.
        locality: Mean share of attention in the 3×3 neighbourhood over the layers, in percent, as (of the
            attention, with local terms or None, by chance).
        probes: By task and mixer, the accuracies of all seeds in percent.
        levels: By task, chance and the best possible in percent.
    """

    outcomes: Sequence[Outcome]
    collisions: Mapping[str, float]
    locality: Mapping[str, tuple[float, float | None, float]]
    probes: Mapping[tuple[str, str], Sequence[float]]
    levels: Mapping[str, tuple[float, float]]

    def summary(self, row: str) -> Summary:
        return next(summary for summary in summarise(PARTS, self.outcomes) if summary.row == row)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, what was measured of it, and the verdict."""

    statement: str
    measured: str
    verdict: str


def judge(evidence: Evidence) -> list[Claim]:
    """Every claim with its verdict, by the same rules whichever way it goes."""
    return [
        _see_length(evidence),
        _compare_counts(
            'Linear attention gives different queries the same weights more often than softmax does.',
            'colliding pairs of queries an image',
            ('linear', evidence.collisions['linear']),
            ('softmax', evidence.collisions['softmax']),
        ),
        _compare_counts(
            'Normalised by subtraction, linear attention confuses fewer queries.',
            'colliding pairs of queries an image',
            ('linear', evidence.collisions['linear']),
            ('linear + injectivity', evidence.collisions['linear_injective']),
        ),
        _compare_counts(
            'Softmax attention is more local than linear attention.',
            'share of attention on the 3×3 neighbourhood (%)',
            ('softmax', evidence.locality['softmax'][0]),
            ('linear', evidence.locality['linear'][0]),
        ),
        _see_neighbour(evidence),
        _compare_accuracy(
            'Injectivity makes linear attention better.', evidence, 'linear_injective', 'linear'
        ),
        _compare_accuracy(
            'The local residual makes linear attention better.', evidence, 'linear_residual', 'linear'
        ),
        _compare_accuracy('InLine is better than plain linear attention.', evidence, 'inline', 'linear'),
        _compare_accuracy(
            'InLine matches softmax attention or beats it.', evidence, 'inline', 'softmax', ties=True
        ),
    ]


def compare_means(first: Sequence[float], second: Sequence[float]) -> int:
    """1 if the first is larger by more than two standard errors of the difference, −1 if smaller, else 0.

    Of a single value each there is no error to know: only a difference of none is none.
    """
    difference = statistics.fmean(first) - statistics.fmean(second)
    error = sum(statistics.variance(values) / len(values) for values in (first, second) if len(values) > 1)
    if abs(difference) <= _ERRORS * error**0.5:
        return 0
    return 1 if difference > 0 else -1


def read_outcomes(path: Path) -> list[Outcome]:
    """What tools/ablate.py wrote."""
    return [
        Outcome(line['row'], int(line['seed']), float(line['top1']), float(line['minutes']))
        for line in _read(path)
    ]


def read_collisions(path: Path) -> dict[str, float]:
    """By row, colliding pairs of an image, summed over layers and heads, as a mean over images."""
    totals: dict[str, dict[str, int]] = {}
    for line in _read(path):
        images = totals.setdefault(_ROWS[line['model']], {})
        images[line['image']] = images.get(line['image'], 0) + int(line['colliding pairs'])
    return {row: statistics.fmean(images.values()) for row, images in totals.items()}


def read_locality(path: Path) -> dict[str, tuple[float, float | None, float]]:
    """By row, means over the layers of the three shares."""
    shares: dict[str, list[tuple[float, float | None, float]]] = {}
    for line in _read(path):
        local = line['with local terms (%)']
        shares.setdefault(_ROWS[line['model']], []).append(
            (float(line['attention (%)']), float(local) if local else None, float(line['chance (%)']))
        )
    return {
        row: (
            statistics.fmean(share[0] for share in layers),
            _mean_known(share[1] for share in layers),
            statistics.fmean(share[2] for share in layers),
        )
        for row, layers in shares.items()
    }


def read_probes(path: Path) -> tuple[dict[tuple[str, str], list[float]], dict[str, tuple[float, float]]]:
    """Accuracies by task and mixer, and chance and the best possible by task, in percent."""
    accuracies: dict[tuple[str, str], list[float]] = {}
    levels = {}
    for line in _read(path):
        accuracies.setdefault((line['task'], line['mixer']), []).append(100 * float(line['accuracy']))
        levels[line['task']] = (100 * float(line['chance']), 100 * float(line['best']))
    return accuracies, levels


def write_page(
    evidence: Evidence, figures: Mapping[str, Path], settings: Mapping[str, str], out: Path
) -> None:
    """One HTML file with all figures inside; `figures` by their captions."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding='utf-8'))
    rows = [
        {
            'title': title,
            'accuracy': format_mean(evidence.summary(row)),
            'collisions': f'{evidence.collisions[row]:,.1f}',
            'locality': f'{evidence.locality[row][0]:.1f}',
            'with_local': _dash(evidence.locality[row][1]),
        }
        for row, title in PARTS.items()
    ]
    claims = judge(evidence)
    page = template.render(
        rows=rows,
        chance=f'{next(iter(evidence.locality.values()))[2]:.1f}',
        claims=claims,
        held=sum(claim.verdict == HELD for claim in claims),
        verdicts={HELD: 'held', REFUTED: 'refuted', OPEN: 'open'},
        figures={
            caption: base64.b64encode(path.read_bytes()).decode('ascii') for caption, path in figures.items()
        },
        settings=settings,
    )
    out.write_text(page, encoding='utf-8')


def _see_length(evidence: Evidence) -> Claim:
    chance, best = evidence.levels['length']
    linear, softmax, inline = (
        evidence.probes['length', name] for name in ('Linear-relu', 'Softmax', 'InLine')
    )
    middle = (chance + best) / 2
    held = max(linear) < middle < min(min(softmax), min(inline))
    return Claim(
        'Linear attention cannot see the length of a query; softmax and InLine can.',
        f'probe: linear {_mean(linear)}, softmax {_mean(softmax)}, InLine {_mean(inline)} % '
        f'(chance {chance:.0f}, best {best:.0f})',
        HELD if held else REFUTED,
    )


def _see_neighbour(evidence: Evidence) -> Claim:
    chance, best = evidence.levels['neighbour']
    without, inline = (evidence.probes['neighbour', name] for name in ('InLine-no-residual', 'InLine'))
    middle = (chance + best) / 2
    held = max(without) < middle < min(inline)
    return Claim(
        'The local residual lets linear attention see its neighbours.',
        f'probe: without the residual {_mean(without)}, with it {_mean(inline)} % '
        f'(chance {chance:.0f}, best {best:.0f})',
        HELD if held else REFUTED,
    )


def _compare_counts(
    statement: str, what: str, larger: tuple[str, float], smaller: tuple[str, float]
) -> Claim:
    """Of figures that one model of each kind gave: the first is said to be larger, by a tenth at least."""
    measured = f'{what}: {larger[0]} {larger[1]:,.1f}, {smaller[0]} {smaller[1]:,.1f}'
    close = abs(larger[1] - smaller[1]) <= _CLOSE * max(larger[1], smaller[1])
    verdict = OPEN if close else HELD if larger[1] > smaller[1] else REFUTED
    return Claim(statement, measured, verdict)


def _compare_accuracy(
    statement: str, evidence: Evidence, better: str, worse: str, ties: bool = False
) -> Claim:
    """The first is said to be the better; where `ties` it need only not be worse."""
    first, second = evidence.summary(better), evidence.summary(worse)
    sign = compare_means(first.accuracies, second.accuracies)
    verdict = HELD if sign > 0 or (ties and sign == 0) else OPEN if sign == 0 else REFUTED
    measured = f'top-1: {first.title} {format_mean(first)}, {second.title} {format_mean(second)} %'
    return Claim(statement, measured, verdict)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def _mean(values: Sequence[float]) -> str:
    return f'{statistics.fmean(values):.1f}'


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _dash(value: float | None) -> str:
    return '–' if value is None else f'{value:.1f}'
