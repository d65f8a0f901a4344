"""The paper's argument as statements that a few measurements can hold or refute, and their page."""

import base64
import csv
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from inline.columns import with_spread
from inline.reproduce.ablations import ABLATIONS, Outcome

_TEMPLATE = Path(__file__).with_name('claims.html')
PARTS = ABLATIONS['parts'].rows['digits']
_ROWS = {title: row for row, title in PARTS.items()}
# Means must differ by this many standard errors to be told apart.
_ERRORS = 2.0
HELD, REFUTED, OPEN = 'held here', 'did not hold here', 'no difference to be seen here'


@dataclass(frozen=True)
class Evidence:
    """What was measured: by row of the table of parts and by mixer of the probes.

    Args:
        outcomes: Accuracies of the trainings on digits, in percent.
        collisions: For each seed, the mean number of colliding pairs of queries an image, over all layers
            and heads.
        locality: For each seed, the mean share of attention in the 3×3 neighbourhood over the layers, in
            percent, as (of the attention, with local terms or None, by chance).
        probes: By task and mixer, the accuracies of all seeds in percent.
        levels: By task, chance and the best possible in percent.
    """

    outcomes: Sequence[Outcome]
    collisions: Sequence[Mapping[str, float]]
    locality: Sequence[Mapping[str, tuple[float, float | None, float]]]
    probes: Mapping[tuple[str, str], Sequence[float]]
    levels: Mapping[str, tuple[float, float]]

    def accuracies_of(self, row: str) -> list[float]:
        return [outcome.accuracy for outcome in self.outcomes if outcome.row == row]

    def collisions_of(self, row: str) -> list[float]:
        return [models[row] for models in self.collisions]

    def shares_of(self, row: str) -> list[float]:
        return [models[row][0] for models in self.locality]

    def shares_with_local_of(self, row: str) -> list[float]:
        """Empty for rows without local terms."""
        shares = [models[row][1] for models in self.locality]
        return [share for share in shares if share is not None]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, what was measured of it, and the verdict."""

    statement: str
    measured: str
    verdict: str


def judge(evidence: Evidence) -> list[Claim]:
    """Every claim with its verdict, by the same rules whichever way it goes."""
    collisions = ('colliding pairs of queries an image', evidence.collisions_of)
    shares = ('share of attention on the 3×3 neighbourhood (%)', evidence.shares_of)
    accuracies = ('top-1 (%)', evidence.accuracies_of)
    return [
        _see_length(evidence),
        _compare(
            'Linear attention gives different queries the same weights more often than softmax does.',
            *collisions,
            'linear',
            'softmax',
        ),
        _compare(
            'Normalised by subtraction, linear attention confuses fewer queries.',
            *collisions,
            'linear',
            'linear_injective',
        ),
        _compare(
            'Softmax attention is more local than linear attention.',
            *shares,
            'softmax',
            'linear',
        ),
        _see_neighbour(evidence),
        _compare(
            'Injectivity makes linear attention better.',
            *accuracies,
            'linear_injective',
            'linear',
        ),
        _compare(
            'The local residual makes linear attention better.',
            *accuracies,
            'linear_residual',
            'linear',
        ),
        _compare('InLine is better than plain linear attention.', *accuracies, 'inline', 'linear'),
        _compare(
            'InLine matches softmax attention or beats it.', *accuracies, 'inline', 'softmax', ties=True
        ),
    ]


def compare_means(first: Sequence[float], second: Sequence[float]) -> int | None:
    """1 if the first is larger by more than two standard errors of the difference, −1 if smaller, else 0.

    None if there is a single value of either: by how much it would vary is not known.
    """
    if min(len(first), len(second)) < 2:
        return None
    difference = statistics.fmean(first) - statistics.fmean(second)
    error = sum(statistics.variance(values) / len(values) for values in (first, second))
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
            'accuracy': _tell(evidence.accuracies_of(row)),
            'collisions': _tell(evidence.collisions_of(row)),
            'locality': _tell(evidence.shares_of(row)),
            'with_local': _tell(evidence.shares_with_local_of(row)),
        }
        for row, title in PARTS.items()
    ]
    claims = judge(evidence)
    page = template.render(
        rows=rows,
        chance=f'{next(iter(evidence.locality[0].values()))[2]:.1f}',
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


def _compare(
    statement: str,
    what: str,
    values_of: Callable[[str], Sequence[float]],
    larger: str,
    smaller: str,
    ties: bool = False,
) -> Claim:
    """The first row is said to have the larger values; where `ties` it need only not have smaller ones."""
    first, second = values_of(larger), values_of(smaller)
    measured = f'{what}: {PARTS[larger]} {_tell(first)}, {PARTS[smaller]} {_tell(second)}'
    verdicts = {1: HELD, 0: HELD if ties else OPEN, -1: REFUTED, None: OPEN}
    return Claim(statement, measured, verdicts[compare_means(first, second)])


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def _mean(values: Sequence[float]) -> str:
    return f'{statistics.fmean(values):.1f}'


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _tell(values: Sequence[float]) -> str:
    """Mean ± standard deviation, which a single value does not have; a dash for no values."""
    if not values:
        return '–'
    return with_spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)
