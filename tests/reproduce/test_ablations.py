"""Ablations: rows that differ in the attention alone."""

import csv
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from inline.engine.config import load_config
from inline.errors import UserError
from inline.reproduce.ablations import (
    ABLATIONS,
    DATASETS,
    Ablation,
    Outcome,
    find_ablation,
    format_mean,
    markdown,
    plan,
    summarise,
)
from tests.conftest import ROOT, run_tool

TABLES = [(ablation, dataset) for ablation in ABLATIONS.values() for dataset in DATASETS]
ids = [f'{ablation.name}-{dataset}' for ablation, dataset in TABLES]


@pytest.mark.parametrize(('ablation', 'dataset'), TABLES, ids=ids)
def test_rows_differ_in_the_mixers_alone_and_build(ablation: Ablation, dataset: str) -> None:
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
    assert all(mixers.count(one) == 1 for one in mixers)


def test_every_config_of_the_folder_is_a_row() -> None:
    files = set((ROOT / 'configs' / 'ablations').rglob('*.py'))
    assert files == {ablation.config(data, row) for ablation, data in TABLES for row in ablation.rows[data]}


def test_windows_are_the_papers() -> None:
    """The first three stages are InLine in windows, each side once with and once without the residual."""
    ablation = ABLATIONS['windows']
    found = []
    for row in ablation.rows['imagenet']:
        *windowed, last = load_config(ablation.config('imagenet', row)).model.backbone.mixers
        assert last == {'type': 'Softmax'}
        (first,) = {(mixer.window_size, mixer.get('residual', True)) for mixer in windowed}
        assert len(windowed) == 3
        assert {mixer.type for mixer in windowed} == {'InLine'}
        found.append(first)
    assert found == [(side, residual) for side in (7, 14, 28, 56) for residual in (False, True)]


def test_rows_are_summed_up_over_seeds() -> None:
    outcomes = [Outcome('a', 0, 50.0, 1.0), Outcome('b', 0, 70.0, 1.0), Outcome('a', 1, 54.0, 1.0)]
    first, second = summarise({'a': 'first', 'b': 'second'}, outcomes)
    assert (first.mean, second.mean) == (52.0, 70.0)
    assert first.spread == pytest.approx(8**0.5)
    assert second.spread is None
    assert format_mean(first) == '52.0 ± 2.8'
    assert markdown([first, second]).splitlines()[2:] == [
        '| first | 52.0 ± 2.8 | 2 |',
        '| second | 70.0 | 1 |',
    ]


def test_seeds_and_rows_have_folders_of_their_own(tmp_path: Path) -> None:
    runs = plan(ABLATIONS['parts'], 'digits', 2, tmp_path)
    assert len({run.folder for run in runs.values()}) == 10
    assert len({run.identity() for run in runs.values()}) == 10


def test_unknown_table() -> None:
    with pytest.raises(UserError, match="unknown table 'heads': choose one of parts, rivals"):
        find_ablation('heads')


@pytest.mark.slow
def test_the_tool_trains_sums_up_and_does_nothing_twice(digit_scenes: Path, tmp_path: Path) -> None:
    command = [
        'tools/ablate.py', 'parts', '--rows', 'softmax', 'inline', '--data-root', digit_scenes.parent,
        '--out', tmp_path, '--side-by-side', '1', '--cfg-options', 'train_cfg.max_iters=2',
        'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2', 'train_dataloader.batch_size=4',
    ]  # fmt: skip
    done = run_tool(*command)
    assert done.returncode == 0, done.stderr[-2000:]
    with (tmp_path / 'results.csv').open(newline='') as file:
        assert [line['row'] for line in csv.DictReader(file)] == ['softmax', 'inline']
    assert '| InLine |' in (tmp_path / 'table.md').read_text()
    assert (tmp_path / 'figure.png').stat().st_size > 10_000
    again = run_tool(*command)
    assert again.stdout.count('done already') == 2
    assert 'training' not in again.stdout


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['heads'], "unknown table 'heads'"),
        (['parts', '--rows', 'relu'], "table 'parts' has no row 'relu': choose from softmax, linear"),
        (['parts', '--seeds', '0'], '--seeds 0: must be at least 1'),
        (['parts', '--dataset', 'cifar'], "argument --dataset: invalid choice: 'cifar'"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    done = run_tool('tools/ablate.py', *words, '--out', tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f'error: {message}')
