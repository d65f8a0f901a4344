"""Invalid data in real runs, data validation in configs, and the page that documents the outcomes."""

import os
import re
import runpy
import shutil
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import cv2
import pytest
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope

from inline.datasets.validation.checks import validate_datasets
from inline.datasets.validation.skip_unreadable import read_skipped
from inline.engine.config import check_config, use_inline_components
from inline.utils.errors import UnreadableError, UserError
from tests.conftest import ROOT, run_tool
from tests.datasets import test_image_loading, test_label_map_loading
from tests.datasets.custom import test_invalid
from tests.datasets.invalid_data import Case, picture, table_rows
from tests.datasets.validation import test_class_folders, test_coco_validation, test_skip_unreadable

CLASSIFIER = 'configs/digits_quick/inline-pvt-nano_digits.py'
SEMANTIC_FPN = 'configs/digits_quick/semantic-fpn_inline-pvt-nano_digits.py'
RETINANET = 'configs/digits_quick/retinanet_inline-pvt-nano_digits.py'


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def run_forked(folder: Path, *words: str | Path) -> Done:
    """Run a tool in a forked process, which does not have to import the toolboxes again."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for name, number in (('out', 1), ('err', 2)):
                os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdout, sys.stderr = os.fdopen(1, 'w', closefd=False), os.fdopen(2, 'w', closefd=False)
            os.chdir(ROOT)
            sys.argv = [str(word) for word in words]
            runpy.run_path(sys.argv[0], run_name='__main__')
            code = 0
        except SystemExit as exited:
            code = exited.code if isinstance(exited.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return Done(os.waitstatus_to_exitcode(status), (folder / 'out').read_text(), (folder / 'err').read_text())


def options(data: Path, workers: int, **others: object) -> list[str]:
    """Return options for a few steps on small data."""
    values = {'train_cfg.max_iters': 3, 'train_cfg.val_interval': 3, **others}
    for loader in ('train_dataloader', 'val_dataloader'):
        values |= {
            f'{loader}.num_workers': workers,
            f'{loader}.persistent_workers': workers > 0,
            f'{loader}.batch_size': 40
            if loader == 'train_dataloader' and 'classification' in str(data)
            else 4,
            f'{loader}.dataset.data_root': data,
        }
    return ['--cfg-options', *(f'{key}={value}' for key, value in values.items())]


@pytest.fixture
def data(digit_scenes: Path, tmp_path: Path) -> Path:
    """A copy of the digit scenes that a test may damage."""
    return shutil.copytree(digit_scenes, tmp_path / 'digit_scenes')


def break_images(folder: Path, count: int) -> list[Path]:
    """Truncate some images, the first one to 0 bytes."""
    images = sorted(folder.rglob('*.jpg'))
    broken = images[:: len(images) // count][:count]
    for path in broken:
        path.write_bytes(path.read_bytes()[:90])
    broken[0].write_bytes(b'')
    return broken


@pytest.mark.slow
def test_training_skips_and_reports_unreadable_samples(data: Path, tmp_path: Path) -> None:
    broken = break_images(data / 'classification' / 'train', 2)
    done = run_tool(
        'tools/train.py',
        CLASSIFIER,
        '--work-dir',
        tmp_path / 'work',
        *options(data / 'classification', 2),
        timeout=1200,
    )
    out = done.stdout + done.stderr
    assert done.returncode == 0, out[-3000:]
    assert 'Traceback' not in out
    last = re.findall(r'data validation: .*', out)[-1]
    assert last.startswith('data validation: 2 training samples skipped: ')
    assert all(repr(str(path)) in last for path in broken)
    assert 'the file is empty' in last
    assert len(read_skipped(tmp_path / 'work' / 'data_validation')) == 2
    log = max((tmp_path / 'work').glob('*/*.log')).read_text()
    assert last in log


@pytest.mark.slow
def test_too_many_unreadable_samples_stop_training(data: Path, tmp_path: Path) -> None:
    break_images(data / 'classification' / 'train', 30)
    words = [CLASSIFIER, '--work-dir', tmp_path / 'work', *options(data / 'classification', 2)]
    done = run_forked(tmp_path, 'tools/train.py', *words)
    assert done.code == 2, done.err[-3000:]
    line = done.err.strip().splitlines()[-1]
    assert re.match(
        r'error: \d+ of 120 training samples cannot be read, but data_validation\.max_skipped is 0\.01: ',
        line,
    )
    assert 'Traceback' not in done.err + done.out


@pytest.mark.slow
def test_validation_skips_nothing(data: Path, tmp_path: Path) -> None:
    path = break_images(data / 'classification' / 'val', 1)[0]
    words = [CLASSIFIER, '--work-dir', tmp_path / 'work', *options(data / 'classification', 2)]
    done = run_forked(tmp_path, 'tools/train.py', *words)
    assert done.code == 2, done.err[-3000:]
    line = f'error: {str(path)!r} cannot be read: the file is empty'
    assert done.err.strip().splitlines()[-1] == line
    assert 'Traceback' not in done.err + done.out


@pytest.mark.slow
def test_an_invalid_label_stops_training(data: Path, tmp_path: Path) -> None:
    for path in (data / 'annotations' / 'training').iterdir():
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        labels[4, 9] = 77
        cv2.imwrite(str(path), labels)
    words = [SEMANTIC_FPN, '--work-dir', tmp_path / 'work', *options(data, 0)]
    done = run_forked(tmp_path, 'tools/train.py', *words)
    assert done.code == 2, done.err[-3000:]
    line = done.err.strip().splitlines()[-1]
    assert re.match(r"error: label map '.*' has label 77 at x=9, y=4: must be 1 to 11, or 255 or 0", line)
    assert 'Traceback' not in done.err + done.out


@pytest.mark.slow
def test_an_invalid_coco_file_is_rejected_before_the_model_is_built(data: Path, tmp_path: Path) -> None:
    path = data / 'instances_train.json'
    path.write_text(path.read_text().replace('"category_id": ', '"category_id": 9', 1))
    words = [RETINANET, '--work-dir', tmp_path / 'work', *options(data, 2)]
    done = run_forked(tmp_path, 'tools/train.py', *words)
    assert done.code == 2, done.err[-3000:]
    assert re.search(r"error: '.*instances_train.json': annotation \d+ has category_id 9\d", done.err)
    assert not list((tmp_path / 'work').glob('*/*.log'))


def test_the_page_has_the_tested_cases() -> None:
    tested: dict[str, Case] = {}
    for cases in (
        test_image_loading.UNREADABLE,
        test_image_loading.SIZES,
        test_image_loading.READ,
        test_image_loading.SPECIAL_FILES,
        test_label_map_loading.BAD,
        test_label_map_loading.GOOD,
        test_coco_validation.REJECTED,
        test_coco_validation.COUNTED,
        test_class_folders.REJECTED,
        test_skip_unreadable.SAMPLES,
        test_invalid.ROWS,
    ):
        assert not tested.keys() & cases.keys()
        tested |= cases
    page = table_rows(ROOT / 'docs' / 'data_validation.md')
    assert page == {name: (case.outcome, case.message) for name, case in tested.items()}
    assert len(page) >= 40


def config(folder: Path, **others: object) -> Config:
    dataset = {
        'type': 'CustomDataset',
        'data_root': str(folder),
        'data_prefix': 'train',
        'pipeline': [{'type': 'LoadImageFromFile', 'to_float32': True}],
    }
    return Config(
        {
            'default_scope': 'mmpretrain',
            'work_dir': str(folder / 'work'),
            'model': {'head': {'num_classes': 3}},
            'train_dataloader': {'dataset': {'type': 'RepeatDataset', 'times': 2, 'dataset': dataset}},
            'val_dataloader': {'dataset': {**dataset, 'data_prefix': 'val'}},
            **others,
        }
    )


def test_any_config_gets_the_inline_loaders_once(tmp_path: Path) -> None:
    settings = {'max_pixels': 5000, 'max_skipped': 3}
    cfg = config(test_class_folders.write_folders(tmp_path), data_validation=settings)
    for _ in range(2):
        use_inline_components(cfg)
    train, val = cfg.train_dataloader.dataset, cfg.val_dataloader.dataset
    assert (train.type, train.dataset.type, val.type) == ('RepeatDataset', 'CustomDataset', 'CustomDataset')
    step = {'type': 'inline.LoadImage', 'to_float32': True, 'max_pixels': 5000}
    assert train.dataset.pipeline == val.pipeline == [step]
    assert cfg.default_hooks.data_validation == {'type': 'inline.DataValidationHook', 'max_skipped': 3}


def test_settings_are_checked(tmp_path: Path) -> None:
    for wrong, message in (
        ({'max_skiped': 1}, "unknown key 'max_skiped' of data_validation: it takes max_skipped, max_pixels"),
        ({'max_skipped': 'few'}, "max_skipped 'few' of data_validation: must be a number"),
        ({'max_pixels': -1}, 'data_validation.max_pixels -1: must be from 0 to'),
    ):
        cfg = config(tmp_path, data_validation=wrong)
        cfg.model.type = 'ImageClassifier'
        for name in ('train_dataloader', 'val_dataloader'):
            cfg[name].sampler = {'type': 'DefaultSampler'}
        with pytest.raises(UserError, match=message):
            check_config(cfg)


def test_classes_of_both_splits_are_compared(tmp_path: Path) -> None:
    root = test_class_folders.write_folders(tmp_path)
    (root / 'val' / 'bee').rename(root / 'val' / 'wasp')
    with pytest.raises(
        UserError, match=r"class folder 'bee' is only in the training split: '.*val' must have"
    ):
        validate_datasets(config(root), ('train_dataloader', 'val_dataloader'))


def test_long_images_pass_the_pipelines_of_all_toolboxes(tmp_path: Path) -> None:
    path = tmp_path / 'long.png'
    picture().resize((90, 1)).save(path)
    for scope, steps in (
        ('mmpretrain', [{'type': 'ResizeEdge', 'scale': 64, 'edge': 'short'}]),
        ('mmpretrain', [{'type': 'RandomResizedCrop', 'scale': 32}]),
        ('mmdet', [{'type': 'Resize', 'scale': (1333, 800), 'keep_ratio': True}]),
        ('mmseg', [{'type': 'Resize', 'scale': (2048, 512), 'keep_ratio': True}]),
    ):
        with DefaultScope.overwrite_default_scope(scope):
            results = Compose([{'type': 'inline.LoadImage'}, *steps])({'img_path': str(path)})
        assert min(results['img'].shape) >= 1
    picture().resize((101, 1)).save(path)
    with pytest.raises(UnreadableError, match='101x1 pixels: the aspect ratio must be at most 100'):
        Compose([{'type': 'inline.LoadImage'}])({'img_path': str(path)})
