"""Ablations: rows that differ only in the attention."""

from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from inline.engine.config import load_config
from inline.models.mixers import AttentionMixer
from inline.reproduce.ablations import ABLATIONS, Ablation, find_ablation, plan_runs
from inline.utils.errors import UserError
from inline.utils.nested import walk_dicts
from tests.conftest import ROOT, run_tool

TABLES = [(ablation, dataset) for ablation in ABLATIONS.values() for dataset in ablation.rows]
# Pixels of the training images.
SIDES = {'digits': 64, 'tiny-imagenet': 32, 'imagenet': 224}
# Options that depend on the number of tokens.
OF_THE_MAP = ('sr_ratio', 'num_landmarks', 'num_agents', 'bias_size', 'position_size', 'block_size')
ids = [f'{ablation.name}-{dataset}' for ablation, dataset in TABLES]


@pytest.mark.slow
@pytest.mark.parametrize(('ablation', 'dataset'), TABLES, ids=ids)
def test_rows_differ_only_in_the_mixers_and_build(ablation: Ablation, dataset: str) -> None:
    rest, mixers = [], []
    for row in ablation.rows[dataset]:
        cfg = load_config(ablation.config(dataset, row))
        init_default_scope(cfg.default_scope)
        side = SIDES[dataset]
        with torch.device('meta'), torch.no_grad():
            model = MODELS.build(cfg.model)
            scores = model.head(model.extract_feat(torch.empty(2, 3, side, side)))
        assert scores.shape == (2, {'digits': 10, 'tiny-imagenet': 200, 'imagenet': 1000}[dataset])
        content = cfg.to_dict()
        for name in [name for name in content if name.startswith('_')]:
            # Helper variables of the config.
            del content[name]
        mixers.append(content['model']['backbone'].pop('mixers'))
        rest.append(content)
    assert all(content == rest[0] for content in rest)
    assert all(mixers.count(mixer) == 1 for mixer in mixers)


@pytest.mark.parametrize('dataset', SIDES)
def test_sides_are_those_of_the_training_images(dataset: str) -> None:
    cfg = load_config(ABLATIONS['baselines'].config(dataset, 'inline'))
    sizes = [
        transform[key]
        for _, transform in walk_dicts(cfg.train_dataloader.dataset.pipeline)
        for key in ('scale', 'crop_size')
        if key in transform
    ]
    assert sizes
    assert all(size in (SIDES[dataset], (SIDES[dataset],) * 2) for size in sizes), sizes


@pytest.mark.parametrize('dataset', SIDES)
@pytest.mark.parametrize(
    ('row', 'tables'), [('agent', ('key_bias.rows', 'query_bias.columns')), ('polaformer', ('position',))]
)
def test_position_tables_have_the_size_of_the_maps(row: str, tables: tuple[str, ...], dataset: str) -> None:
    cfg = load_config(ABLATIONS['baselines'].config(dataset, row))
    init_default_scope(cfg.default_scope)
    maps: list[tuple[int, int]] = []
    sides: list[int] = []
    with torch.device('meta'), torch.no_grad():
        backbone = MODELS.build(cfg.model.backbone)
        for mixer in [module for module in backbone.modules() if isinstance(module, AttentionMixer)]:
            mixer.register_forward_pre_hook(lambda _, args: maps.append(args[1]))
            (side,) = {max(mixer.get_submodule(table).weight.shape[2:]) for table in tables}
            sides.append(side)
        backbone(torch.empty(1, 3, SIDES[dataset], SIDES[dataset]))
    assert len(set(maps)) == {'digits': 3, 'tiny-imagenet': 4, 'imagenet': 1}[dataset]
    assert maps == [(side, side) for side in sides]


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


@pytest.mark.slow
@pytest.mark.parametrize('table', ['components', 'baselines'])
def test_all_datasets_have_the_same_rows_and_mixers(table: str) -> None:
    """A row means the same on every dataset. Options that depend on the number of tokens may differ."""
    ablation = ABLATIONS[table]
    assert list(ablation.rows) == ['digits', 'tiny-imagenet', 'imagenet']
    for row in ablation.rows['digits']:
        mixers = []
        for dataset in ablation.rows:
            mixers.append(distinct_mixers(load_config(ablation.config(dataset, row)).model.backbone.mixers))
        assert mixers[0] == mixers[1] == mixers[2], row


def distinct_mixers(node: Any) -> list[dict[str, Any]]:
    """Return the mixers of a config in order of appearance, without options that depend on the map."""
    found: list[dict[str, Any]] = []
    for entry in [node] if isinstance(node, dict) else node:
        options = distinct_mixers(entry) if isinstance(entry, list) else [dict(entry)]
        for mixer in options:
            kept = {key: value for key, value in mixer.items() if key not in OF_THE_MAP}
            if kept not in found:
                found.append(kept)
    return found


@pytest.mark.parametrize(('table', 'schedule'), [('components', 10), ('baselines', 6)])
def test_training_on_tiny_imagenet_has_a_fixed_number_of_epochs(table: str, schedule: int) -> None:
    cfg = load_config(ABLATIONS[table].config('tiny-imagenet', 'inline'))
    assert cfg.train_cfg.max_epochs == schedule
    assert cfg.model.backbone.absolute_position


def test_a_dataset_without_configs_is_reported() -> None:
    message = "table 'kernels' has no configs for 'tiny-imagenet': choose from digits, imagenet"
    with pytest.raises(UserError, match=message):
        ABLATIONS['kernels'].choose_rows('tiny-imagenet')


def test_rows_keep_the_order_of_the_table() -> None:
    assert list(ABLATIONS['components'].choose_rows('digits', ['inline', 'softmax'])) == ['softmax', 'inline']


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
        (['kernels', '--summarize', '--results', '.'], "no measured runs of 'kernels' on 'digits'"),
        (['components', '--dataset', 'cifar'], "argument --dataset: invalid choice: 'cifar'"),
    ],
)
def test_errors_are_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    done = run_tool('tools/ablate.py', *words, '--out', tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f'error: {message}')
    assert done.stderr.count('\n') == 1
