"""tools/analyze.py on small untrained classifiers, and its error messages.

Most commands run in the test process, which saves importing the toolboxes again.
"""

from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from inline.engine.logs import read_test_metrics
from inline.utils.tables import read_csv
from tests.conftest import run_tool
from tests.tools.conftest import Run

CLASSIFIER = 'configs/digits/inline-pvt-micro_digits.py'
LAYERS = ['1.1', '2.1', '2.2', '3.1', '3.2', '4.1']
SOFTMAX = {'type': 'Softmax', 'sr_ratio': 1}


@pytest.fixture(scope='module')
def models(digit_scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Config and checkpoint of three classifiers: InLine, softmax, and softmax with spatial reduction."""
    from mmengine.registry import MODELS, init_default_scope

    from inline.engine.config import load_config

    folder = tmp_path_factory.mktemp('models')
    made = {}
    for name, mixers in (('inline', None), ('softmax', SOFTMAX), ('reduced', {'type': 'Softmax'})):
        options = {
            'test_dataloader.num_workers': 0,
            'test_dataloader.persistent_workers': False,
            'test_dataloader.dataset.data_root': str(digit_scenes / 'classification'),
        }
        cfg = load_config(CLASSIFIER, options)
        if mixers is not None:
            cfg.model.backbone.mixers = mixers
        init_default_scope(cfg.default_scope)
        torch.manual_seed(0)
        model = MODELS.build(cfg.model)
        cfg.dump(folder / f'{name}.py')
        torch.save({'state_dict': model.state_dict()}, folder / f'{name}.pth')
        made[name] = [str(folder / f'{name}.py'), str(folder / f'{name}.pth')]
    return made


@pytest.fixture
def analyze(run_here: Run) -> Run:
    return partial(run_here, 'analyze')


def assert_is_figure(path: Path) -> None:
    image = cv2.imread(str(path))
    assert image is not None
    assert min(image.shape[:2]) > 300
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 20


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / 'photo.png'
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, (60, 80, 3)).astype(np.uint8))
    return path


@pytest.mark.slow
def test_illustration_needs_no_model(tmp_path: Path) -> None:
    done = run_tool('tools/analyze.py', 'illustration', '--out', tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith('panel ')
    weights = {
        (row['panel'], row['attention'], row['query']): float(row['k1'])
        for row in read_csv(tmp_path / 'illustration.csv')
    }
    assert len(weights) == 2 * 3 * 4
    assert abs(weights['a', 'linear', 'q1'] - weights['a', 'linear', 'q4']) < 1e-6
    assert abs(weights['a', 'InLine', 'q1'] - weights['a', 'InLine', 'q4']) > 0.1
    assert_is_figure(tmp_path / 'illustration.png')


@pytest.mark.slow
def test_injectivity_counts_pairs_per_image_layer_and_head(
    analyze: Run, models: dict[str, list[str]], tmp_path: Path
) -> None:
    words = [*models['inline'], *models['softmax'], '--label', 'ours', 'theirs', '--images', '2']
    code, _, errors = analyze('injectivity', *words, '--out', tmp_path)
    assert code == 0, errors
    assert '2/2' in errors[-1]
    rows = read_csv(tmp_path / 'injectivity.csv')
    # Heads of the six layers.
    assert len(rows) == 2 * 2 * (2 + 4 + 4 + 8 + 8 + 12)
    assert {row['model'] for row in rows} == {'ours', 'theirs'}
    pairs = {row['layer']: int(row['pairs']) for row in rows}
    assert pairs == {'1.1': 10296, '2.1': 630, '2.2': 630, '3.1': 36, '3.2': 36, '4.1': 6}
    assert all(0 <= int(row['colliding pairs']) <= int(row['pairs']) for row in rows)
    for name in ('injectivity', 'injectivity_heads'):
        assert_is_figure(tmp_path / f'{name}.png')


def test_all_pairs_collide_with_a_large_tolerance(
    analyze: Run, models: dict[str, list[str]], tmp_path: Path
) -> None:
    words = [*models['inline'], '--images', '1', '--layers', '2.1', '4.1', '--tolerance', '100']
    assert analyze('injectivity', *words, '--out', tmp_path)[0] == 0
    rows = read_csv(tmp_path / 'injectivity.csv')
    assert {row['layer'] for row in rows} == {'2.1', '4.1'}
    assert all(row['colliding pairs'] == row['pairs'] for row in rows)


@pytest.mark.slow
def test_locality_reports_share_and_chance_per_layer(
    analyze: Run, models: dict[str, list[str]], tmp_path: Path
) -> None:
    code, lines, _ = analyze(
        'locality',
        *models['inline'],
        *models['softmax'],
        *models['reduced'],
        '--images',
        '2',
        '--out',
        tmp_path,
    )
    assert code == 0
    assert 'reduced: skipped layers 1.1, 2.1, 2.2, 3.1, 3.2, which have spatial reduction' in lines
    rows = read_csv(tmp_path / 'locality.csv')
    assert [row['layer'] for row in rows] == 3 * LAYERS
    for row in rows:
        assert bool(row['with local terms (%)']) == (row['model'] == 'inline')
        is_defined = row['model'] != 'reduced' or row['layer'] == '4.1'
        assert bool(row['attention (%)']) == bool(row['chance (%)']) == is_defined
    chance = {row['layer']: float(row['chance (%)']) for row in rows[:6]}
    assert chance['3.1'] == pytest.approx(100 * (4 * 4 / 9 + 4 * 6 / 9 + 1) / 9)
    assert chance['4.1'] == 100
    assert_is_figure(tmp_path / 'locality.png')


@pytest.mark.slow
def test_masking_does_not_depend_on_the_batch_size(
    analyze: Run, models: dict[str, list[str]], tmp_path: Path
) -> None:
    words = ['masking', *models['inline'], *models['softmax'], '--images', '3', '--windows', '3', '5']
    assert analyze(*words, '--out', tmp_path / 'a', '--batch-size', '3')[0] == 0
    assert analyze(*words, '--out', tmp_path / 'b', '--batch-size', '1')[0] == 0
    rows = read_csv(tmp_path / 'a' / 'masking.csv')
    assert rows == read_csv(tmp_path / 'b' / 'masking.csv')
    assert [(row['masked keys'], row['window']) for row in rows[:5]] == [
        ('none', '–'),
        ('local', '3×3'),
        ('random', '3×3'),
        ('local', '5×5'),
        ('random', '5×5'),
    ]
    assert all(row['images'] == '3' and 0 <= float(row['top-1 (%)']) <= 100 for row in rows)
    assert_is_figure(tmp_path / 'a' / 'masking.png')


@pytest.mark.slow
def test_unmasked_accuracy_equals_that_of_the_test_tool(
    analyze: Run, models: dict[str, list[str]], tmp_path: Path
) -> None:
    assert (
        analyze('masking', *models['inline'], '--windows', '3', '--layers', '4.1', '--out', tmp_path)[0] == 0
    )
    unmasked = float(read_csv(tmp_path / 'masking.csv')[0]['top-1 (%)'])
    done = run_tool('tools/test.py', *models['inline'], '--work-dir', tmp_path / 'test')
    assert done.returncode == 0, done.stderr[-3000:]
    tested = read_test_metrics(tmp_path / 'test')
    assert tested['accuracy/top1'] == pytest.approx(unmasked)


@pytest.mark.slow
def test_maps_contain_the_chosen_queries_and_layers(
    analyze: Run, models: dict[str, list[str]], photo: Path, tmp_path: Path
) -> None:
    words = ['--query', '0', '0', '--query', '47', '20', '--layers', '1.1', '3.2', '--out', tmp_path]
    assert analyze('maps', *models['inline'], photo, *words)[0] == 0
    rows = read_csv(tmp_path / 'maps_photo.csv')
    # Two queries on maps of 12×12 and 3×3, each with a 3×3 kernel.
    assert len(rows) == 2 * (144 + 9) + 2 * (9 + 9)
    for query in ('0', '47'):
        for layer in ('1.1', '3.2'):
            weights = [
                float(row['weight'])
                for row in rows
                if (row['query y'], row['layer'], row['kind']) == (query, layer, 'attention')
            ]
            assert sum(weights) == pytest.approx(1, abs=1e-5)
    assert_is_figure(tmp_path / 'maps_photo.png')


@pytest.mark.parametrize('command', ['', 'illustration', 'injectivity', 'locality', 'masking', 'maps'])
def test_help_of_every_command(analyze: Run, command: str) -> None:
    code, lines, _ = analyze(*filter(None, [command]), '--help')
    assert code == 0
    assert lines[0].startswith('usage:')
    if command in ('injectivity', 'locality', 'masking'):
        assert 'CONFIG CHECKPOINT [CONFIG CHECKPOINT ...]' in lines[0]


ERRORS = {
    'no command': ([], 'the following arguments are required: COMMAND'),
    'unknown command': (['colour'], "invalid choice: 'colour'"),
    'missing config': (['locality', 'nowhere.py', '{checkpoint}'], "config 'nowhere.py' does not exist"),
    'missing checkpoint': (['locality', '{config}', 'gone.pth'], "checkpoint 'gone.pth' does not exist"),
    'config alone': (['masking', '{config}'], '1 files: pass a config and a checkpoint for each model'),
    'no checkpoint': (
        ['locality', '{config}', '{config}'],
        'cannot be read: it is damaged or not a checkpoint',
    ),
    'checkpoint of another model': (
        ['locality', '{config}', '{other}'],
        '24 missing from the file: backbone.stages.0.blocks.0.mixer.residual.fc1.weight',
    ),
    'too few labels': (
        ['locality', '{config}', '{checkpoint}', '{config}', '{checkpoint}', '--label', 'one'],
        '--label has 1 names, but there are 2 models',
    ),
    'same names': (
        ['locality', '{config}', '{checkpoint}', '{config}', '{checkpoint}'],
        "2 models have the label 'inline': give each a different one with --label",
    ),
    'no images': (
        ['locality', '{config}', '{checkpoint}', '--images', '0'],
        '--images 0: must be at least 1',
    ),
    'missing data': (
        [
            'locality',
            '{config}',
            '{checkpoint}',
            '--cfg-options',
            'test_dataloader.dataset.data_root=/no/digit_scenes',
        ],
        "data folder '/no/digit_scenes' of test_dataloader does not exist: create it with",
    ),
    'unknown layer': (
        ['locality', '{config}', '{checkpoint}', '--layers', '5.1'],
        "layer '5.1' does not exist: choose from 1.1, 2.1, 2.2, 3.1, 3.2, 4.1",
    ),
    'tolerance': (
        ['injectivity', '{config}', '{checkpoint}', '--tolerance', '0'],
        '--tolerance 0.0: must be greater than 0',
    ),
    'even window': (
        ['masking', '{config}', '{checkpoint}', '--windows', '4'],
        '--windows 4: must be odd and positive',
    ),
    'reduced keys': (
        ['masking', '{reduced config}', '{reduced}', '--images', '1'],
        'stage 1 block 1 has 4 keys for 144 queries (spatial reduction)',
    ),
    'missing image': (['maps', '{config}', '{checkpoint}', 'gone.png'], "image 'gone.png' does not exist"),
    'no image': (['maps', '{config}', '{checkpoint}', '{config}'], 'cannot be read: not an image'),
    'query outside': (
        ['maps', '{config}', '{checkpoint}', '{photo}', '--query', '48', '0'],
        'query 48 0 is outside the image: after the test pipeline it has 48 rows and 48 columns',
    ),
    'query no number': (
        ['maps', '{config}', '{checkpoint}', '{photo}', '--query', 'a', '0'],
        "argument --query: invalid int value: 'a'",
    ),
}


@pytest.mark.parametrize('case', ERRORS)
def test_user_error_is_reported_in_one_line(
    analyze: Run, case: str, models: dict[str, list[str]], photo: Path, tmp_path: Path
) -> None:
    words, expected = ERRORS[case]
    names = {
        'config': models['inline'][0],
        'checkpoint': models['inline'][1],
        'other': models['softmax'][1],
        'reduced config': models['reduced'][0],
        'reduced': models['reduced'][1],
        'photo': str(photo),
    }
    out = ['--out', str(tmp_path)] if words else []
    code, _, errors = analyze(*[word.format(**names) for word in words], *out)
    assert code == 2, errors
    messages = [line for line in errors if 'error: ' in line]
    assert len(messages) == 1, errors
    assert expected in messages[0]
    assert not list(tmp_path.glob('*.csv'))


@pytest.mark.slow
def test_user_error_in_a_separate_process_prints_no_traceback(models: dict[str, list[str]]) -> None:
    done = run_tool('tools/analyze.py', 'masking', models['inline'][0], models['softmax'][1])
    assert done.returncode == 2
    assert 'Traceback' not in done.stderr
    assert done.stderr.splitlines()[-1].startswith('error: checkpoint ')
