"""Tables, verdicts and figures of ablations, from runs written by hand."""

from pathlib import Path

import pytest

from inline.reproduce.ablation_runs import (
    Cost,
    Outcome,
    append_outcome,
    read_costs,
    read_outcomes,
    write_costs,
    write_outcomes,
)
from inline.reproduce.ablation_tables import (
    NOT_COMPARABLE,
    NOT_MEASURED,
    Summary,
    costs_file,
    draw_speed_accuracy,
    draw_summaries,
    judge_ablation,
    read_summaries,
    runs_file,
    summarize,
    table_rows,
    write_summaries,
)
from inline.reproduce.ablations import ABLATIONS
from inline.reproduce.claims import HELD, INCONCLUSIVE, NOT_HELD
from inline.reproduce.generated_files import table_source
from inline.reproduce.provenance import PROVENANCE
from inline.utils.tables import read_csv
from tests.conftest import ROOT

COMPONENTS, BASELINES = ABLATIONS['components'], ABLATIONS['baselines']
COST = Cost('inline', 1.25, 0.0123, 'predicted', 2.5, 0.1, 'a machine')


def outcome(
    row: str,
    seed: int,
    accuracy: float,
    commit: str = 'abc',
    schedule: str = '10 epochs',
    measured: tuple[float | None, ...] = (),
) -> Outcome:
    provenance = {**dict.fromkeys(PROVENANCE, ''), 'commit': commit, 'digest': f'{row}{seed}{schedule}'}
    return Outcome(row, seed, schedule, accuracy, 1.0, provenance, *measured)


def test_rows_are_averaged_over_seeds() -> None:
    outcomes = [outcome('a', 0, 50.0), outcome('b', 0, 70.0), outcome('a', 1, 54.0)]
    first, second, third = summarize({'a': 'first', 'b': 'second', 'c': 'third'}, outcomes)
    assert (first.mean, second.mean) == (52.0, 70.0)
    assert table_rows([first, second, third]) == [
        ['attention', 'top-1 (%)', 'rank', 'seeds × training'],
        ['first', '52.0 ± 2.8', '2', '2 × 10 epochs'],
        ['second', '70.0', '1', '1 × 10 epochs'],
        ['third', '–', '–', NOT_MEASURED],
    ]


def test_the_table_shows_costs_measurements_and_published_figures() -> None:
    outcomes = [outcome('inline', 0, 50.0, measured=(3.0, 15.0, 55.5)), outcome('linear', 0, 40.0)]
    header, *rows = table_rows(summarize({'linear': 'linear', 'inline': 'InLine'}, outcomes, [COST]))
    linear, inline = (dict(zip(header, row, strict=True)) for row in rows)
    assert inline['convolution'] == 'predicted'
    assert (inline['params (M)'], inline['FLOPs (G)'], inline['ms/image']) == ('1.25', '0.012', '2.50')
    assert (inline['colliding pairs/image'], inline['with local terms (%)']) == ('3.0', '55.5')
    assert inline['DeiT-T, ImageNet, published'] == '74.5'
    assert (inline['rank, DeiT-T, published'], linear['rank, DeiT-T, published']) == ('1', '2')
    assert linear['params (M)'] == linear['colliding pairs/image'] == ''


def test_published_figures_are_those_of_the_other_tables() -> None:
    """DeiT-T and Swin-T with softmax and InLine are in imagenet.csv and in table9.csv."""
    imagenet = {
        line['model']: line['top1']
        for line in read_csv(ROOT / 'results' / 'paper' / 'imagenet.csv')
        if line['resolution'] == '224'
    }
    softmax, inline = summarize({'softmax': '', 'inline': ''}, [])
    for backbone in ('DeiT-T', 'Swin-T'):
        assert softmax.published[backbone] == float(imagenet[backbone])
        assert inline.published[backbone] == float(imagenet[f'InLine-{backbone}'])


def test_the_summary_file_has_provenance_that_pages_do_not_show(tmp_path: Path) -> None:
    outcomes = [outcome('a', 0, 50.0), outcome('a', 1, 54.0, commit='def')]
    write_summaries(summarize({'a': 'first'}, outcomes), tmp_path / 'table.csv')
    assert 'abc; def' in (tmp_path / 'table.csv').read_text().splitlines()[1]
    shown = table_source(str(tmp_path / 'table.csv'))
    assert shown[1] == ['first', '52.0 ± 2.8', '1', '2 × 10 epochs']


def test_runs_are_added_to_a_file_and_replace_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / 'runs.csv'
    assert read_outcomes(path) == []
    first, other = (
        outcome('a', 0, 50.0, measured=(1.5, 20.25, None)),
        outcome('a', 0, 30.0, schedule='2 steps'),
    )
    for line in (other, first, first):
        append_outcome(line, path)
    assert read_outcomes(path) == [other, first]
    # The newest run of a seed counts.
    (row,) = summarize({'a': 'first'}, read_outcomes(path))
    assert row.outcomes == (first,)


def test_a_file_of_an_earlier_version_is_ignored(tmp_path: Path) -> None:
    (tmp_path / 'runs.csv').write_text('row,seed,top1,minutes\na,0,50.00,1.0\n')
    assert read_outcomes(tmp_path / 'runs.csv') == []


def test_costs_of_other_rows_are_kept(tmp_path: Path) -> None:
    path = tmp_path / 'costs.csv'
    other = Cost('softmax', 1.0, 0.02, 'no', 3.0, 0.2, 'a machine')
    write_costs([COST, other], path)
    newer = Cost('inline', 1.25, 0.0123, 'predicted', 2.25, 0.1, 'a machine')
    write_costs([newer], path)
    assert read_costs(path) == [newer, other]


def judge_components(accuracies: dict[str, list[float]], **kwargs: str) -> list[str]:
    outcomes = [
        outcome(row, seed, value, **kwargs)
        for row, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    return [claim.verdict for claim in judge_ablation(COMPONENTS, components(outcomes))]


def components(outcomes: list[Outcome]) -> list[Summary]:
    return summarize(COMPONENTS.rows['tiny-imagenet'], outcomes)


def test_claims_about_missing_rows_are_not_measured() -> None:
    assert judge_components({}) == [NOT_MEASURED] * 7
    # Accuracies only: collisions and locality stay unmeasured.
    verdicts = judge_components({'linear': [20.0, 20.2], 'inline': [30.0, 30.4]})
    assert verdicts == [*[NOT_MEASURED] * 5, HELD, NOT_MEASURED]


def test_verdicts_follow_the_accuracies() -> None:
    accuracies = {
        'softmax': [30.0, 30.2],
        'linear': [25.0, 25.2],
        'linear_injective': [25.1, 25.3],
        'linear_residual': [20.0, 20.2],
        'inline': [30.1, 29.9],
    }
    assert judge_components(accuracies)[3:] == [INCONCLUSIVE, NOT_HELD, HELD, HELD]


def test_with_one_seed_the_verdict_says_so() -> None:
    outcomes = [
        outcome('softmax', 0, 30.0, measured=(1.0, 20.0)),
        outcome('linear', 0, 25.0, measured=(5.0, 21.0)),
        outcome('inline', 0, 29.0),
    ]
    verdicts = [claim.verdict for claim in judge_ablation(COMPONENTS, components(outcomes))]
    assert verdicts[0] == f'{HELD}, one seed'
    assert verdicts[2] == f'{NOT_HELD}, one seed'
    assert verdicts[5:] == [f'{HELD}, one seed', f'{NOT_HELD}, one seed']
    for inline, expected in ((25.4, INCONCLUSIVE), (25.6, HELD), (24.4, NOT_HELD)):
        pair = [outcome('linear', 0, 25.0), outcome('inline', 0, inline)]
        verdict = judge_ablation(COMPONENTS, components(pair))[5].verdict
        assert verdict == f'{expected}, one seed'


def test_rows_of_different_training_lengths_are_not_compared() -> None:
    outcomes = [outcome('linear', 0, 25.0, schedule='2 epochs'), outcome('inline', 0, 29.0)]
    assert judge_ablation(COMPONENTS, components(outcomes))[5].verdict == NOT_COMPARABLE


def test_baselines_are_compared_in_their_published_order() -> None:
    titles = {'flatten': 'FLatten', 'mala': 'MALA', 'mlla': 'MLLA', 'new': 'a new mixer', 'inline': 'InLine'}
    outcomes = [outcome(row, seed, 30.0 + i) for i, row in enumerate(titles) for seed in (0, 1)]
    claims = {claim.statement: claim for claim in judge_ablation(BASELINES, summarize(titles, outcomes))}
    assert {statement: claim.verdict for statement, claim in claims.items()} == {
        'InLine outperforms FLatten (DeiT-T on ImageNet: 74.5 vs 74.1).': HELD,
        'MALA outperforms InLine (DeiT-T on ImageNet: 75.1 vs 74.5).': NOT_HELD,
        'InLine outperforms MLLA (the paper ranks InLine first; no number was found).': HELD,
    }


def test_pages_show_the_tables_of_every_dataset(tmp_path: Path) -> None:
    for dataset in ('digits', 'tiny-imagenet', 'imagenet'):
        for ablation in (COMPONENTS, BASELINES):
            rows = table_source(f'ablation/{ablation.name}/{dataset}')
            assert [row[0] for row in rows[1:]] == list(ablation.rows[dataset].values())
            assert len(table_source(f'verdicts/{ablation.name}/{dataset}')) > 7
    # Nothing measured in an empty folder.
    assert not any(summary.outcomes for summary in read_summaries(tmp_path, BASELINES, 'digits'))


@pytest.mark.parametrize('seeds', [1, 2])
def test_figures_show_the_measured_rows(tmp_path: Path, seeds: int) -> None:
    outcomes = [outcome(row, seed, 50.0 + seed) for row in ('softmax', 'inline') for seed in range(seeds)]
    write_outcomes(outcomes, runs_file(tmp_path, COMPONENTS, 'digits'))
    write_costs([COST], costs_file(tmp_path, COMPONENTS, 'digits'))
    summaries = read_summaries(tmp_path, COMPONENTS, 'digits')
    for draw in (draw_summaries, draw_speed_accuracy):
        draw(summaries, 'a title', tmp_path / f'{draw.__name__}.png')
        assert (tmp_path / f'{draw.__name__}.png').stat().st_size > 5_000
