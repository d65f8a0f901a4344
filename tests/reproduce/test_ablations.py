"""Ablations: rows that differ only in the attention."""

from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from inline.engine.config import load_config
from inline.reproduce.ablations import (
    ABLATIONS,
    DATASETS,
    Ablation,
    Outcome,
    find_ablation,
    plan_runs,
    summarize,
    table_rows,
    write_summaries,
)
from inline.reproduce.generated_files import table_source
from inline.utils.errors import UserError
from tests.conftest import ROOT, run_tool

TABLES = [(ablation, dataset) for ablation in ABLATIONS.values() for dataset in DATASETS]
ids = [f'{ablation.name}-{dataset}' for ablation, dataset in TABLES]


@pytest.mark.slow
@pytest.mark.parametrize(('ablation', 'dataset'), TABLES, ids=ids)
def test_rows_differ_only_in_the_mixers_and_build(ablation: Ablation, dataset: str) -> None:
    rest, mixers = [], []
    for row in ablation.rows[dataset]:
        cfg = load_config(ablation.config(dataset, row))
        init_default_scope(cfg.default_scope)
        side = {'digits': 48, 'imagenet': 224}[dataset]
        with torch.device('meta'), torch.no_grad():
            model = MODELS.build(cfg.model)
            scores = model.head(model.extract_feat(torch.empty(2, 3, side, side)))
        assert scores.shape == (2, {'digits': 10, 'imagenet': 1000}[dataset])
        content = cfg.to_dict()
        content.pop('_mixer', None)
        mixers.append(content['model']['backbone'].pop('mixers'))
        rest.append(content)
    assert all(content == rest[0] for content in rest)
    assert all(mixers.count(mixer) == 1 for mixer in mixers)


def test_every_config_in_the_folder_is_a_row() -> None:
    files = set((ROOT / 'configs' / 'ablations').rglob('*.py'))
    assert files == {ablation.config(data, row) for ablation, data in TABLES for row in ablation.rows[data]}


def test_windows_are_those_of_the_paper() -> None:
    """The first three stages use InLine in windows, each size with and without the residual."""
    ablation = ABLATIONS['windows']
    found = []
    for row in ablation.rows['imagenet']:
        *windowed, last = load_config(ablation.config('imagenet', row)).model.backbone.mixers
        assert last == {'type': 'Softmax'}
        (first,) = {(mixer.window_size, mixer.get('residual', True)) for mixer in windowed}
        assert len(windowed) == 3
        assert {mixer.type for mixer in windowed} == {'InLine'}
        found.append(first)
    assert found == [(size, residual) for size in (7, 14, 28, 56) for residual in (False, True)]


def outcome(row: str, seed: int, accuracy: float, commit: str = 'abc') -> Outcome:
    return Outcome(row, seed, accuracy, 1.0, {'commit': commit, 'date': '2026-01-01'})


def test_rows_are_averaged_over_seeds() -> None:
    outcomes = [outcome('a', 0, 50.0), outcome('b', 0, 70.0), outcome('a', 1, 54.0)]
    first, second = summarize({'a': 'first', 'b': 'second'}, outcomes)
    assert (first.mean, second.mean) == (52.0, 70.0)
    assert table_rows([first, second])[1:] == [['first', '52.0 ± 2.8', '2'], ['second', '70.0', '1']]


def test_the_summary_file_has_provenance_that_pages_do_not_show(tmp_path: Path) -> None:
    outcomes = [outcome('a', 0, 50.0), outcome('a', 1, 54.0, commit='def')]
    write_summaries(summarize({'a': 'first'}, outcomes), tmp_path / 'table.csv')
    line = (tmp_path / 'table.csv').read_text().splitlines()[1]
    assert 'abc; def' in line
    assert '2026-01-01' in line
    shown = table_source(str(tmp_path / 'table.csv'))
    assert shown == [['attention', 'top-1 (%)', 'rank'], ['first', '52.0 ± 2.8', '1']]


def test_every_row_and_seed_has_its_own_folder_and_inputs(tmp_path: Path) -> None:
    runs = plan_runs(ABLATIONS['components'], 'digits', 2, tmp_path)
    assert len({run.folder for run in runs.values()}) == 10
    assert len({run.inputs().digest for run in runs.values()}) == 10


@pytest.mark.parametrize(('old', 'new'), [('parts', 'components'), ('rivals', 'baselines')])
def test_earlier_names_of_tables_still_work(old: str, new: str) -> None:
    assert find_ablation(old) is find_ablation(new)


def test_the_message_for_an_unknown_table_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown table 'heads': choose one of components, baselines"):
        find_ablation('heads')


@pytest.mark.slow
@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['parts', '--rows', 'relu'], "table 'components' has no row 'relu': choose from softmax, linear"),
        (['components', '--seeds', '0'], '--seeds 0: must be at least 1'),
        (['components', '--dataset', 'cifar'], "argument --dataset: invalid choice: 'cifar'"),
    ],
)
def test_errors_are_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    done = run_tool('tools/ablate.py', *words, '--out', tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f'error: {message}')
    assert done.stderr.count('\n') == 1
