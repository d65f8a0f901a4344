"""Bad data in whole runs: one line, exit code 2, or a summary; and the page that says so."""

import os
import re
import runpy
import shutil
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.dataset import BaseDataset

from inline.datasets.skipping import (
    SkippedSamples,
    SkipUnreadable,
    build_checked,
    describe_skipped,
    read_skipped,
)
from inline.engine.bad_data import guard_data
from inline.errors import BadDataError, UnreadableError, UserError, exit_on_user_error
from tests.conftest import ROOT, run_tool
from tests.datasets import test_bad_classes, test_bad_coco, test_bad_images, test_bad_label_maps
from tests.datasets.bad_data import Row, picture, table_rows

CLASSIFIER = 'configs/digits_quick/inline-pvt-nano_digits.py'
SEMANTIC_FPN = 'configs/digits_quick/semantic-fpn_inline-pvt-nano_digits.py'
RETINANET = 'configs/digits_quick/retinanet_inline-pvt-nano_digits.py'


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def run_forked(folder: Path, *words: str | Path) -> Done:
    """Run a tool as a process of its own that need not import the stack again."""
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
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return Done(os.waitstatus_to_exitcode(status), (folder / 'out').read_text(), (folder / 'err').read_text())


def options(data: Path, workers: int, **others: object) -> list[str]:
    """A few steps on small data, with so many processes that load it."""
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
    """The digit scenes for one test, which may break them."""
    return shutil.copytree(digit_scenes, tmp_path / 'digit_scenes')


def break_images(folder: Path, count: int) -> list[Path]:
    """Cut off some images, and empty the first."""
    images = sorted(folder.rglob('*.jpg'))
    broken = images[:: len(images) // count][:count]
    for path in broken:
        path.write_bytes(path.read_bytes()[:90])
    broken[0].write_bytes(b'')
    return broken


@pytest.mark.slow
def test_training_leaves_out_what_cannot_be_read_and_says_so(data: Path, tmp_path: Path) -> None:
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
    last = re.findall(r'bad data: .*', out)[-1]
    assert last.startswith('bad data: 2 training samples were skipped: ')
    assert all(repr(str(path)) in last for path in broken)
    assert 'the file is empty' in last
    assert len(read_skipped(tmp_path / 'work' / 'bad_data')) == 2
    log = max((tmp_path / 'work').glob('*/*.log')).read_text()
    assert last in log


@pytest.mark.slow
@pytest.mark.parametrize('workers', [0, 2])
def test_too_much_that_cannot_be_read_stops_training(workers: int, data: Path, tmp_path: Path) -> None:
    break_images(data / 'classification' / 'train', 30)
    words = [CLASSIFIER, '--work-dir', tmp_path / 'work', *options(data / 'classification', workers)]
    done = run_forked(tmp_path, 'tools/train.py', *words)
    assert done.code == 2, done.err[-3000:]
    line = done.err.strip().splitlines()[-1]
    assert re.match(
        r'error: \d+ of 120 training samples cannot be read, and bad_data.max_skipped is 0.01: the first is ',
        line,
    )
    assert 'Traceback' not in done.err + done.out


@pytest.mark.slow
def test_nothing_is_left_out_of_a_validation(data: Path, tmp_path: Path) -> None:
    path = break_images(data / 'classification' / 'val', 1)[0]
    words = [CLASSIFIER, '--work-dir', tmp_path / 'work', *options(data / 'classification', 2)]
    done = run_forked(tmp_path, 'tools/train.py', *words)
    assert done.code == 2, done.err[-3000:]
    line = f'error: {str(path)!r} cannot be read: the file is empty'
    assert done.err.strip().splitlines()[-1] == line
    assert 'Traceback' not in done.err + done.out


@pytest.mark.slow
@pytest.mark.parametrize('workers', [0, 2])
def test_a_label_beyond_the_classes_stops_training(workers: int, data: Path, tmp_path: Path) -> None:
    for path in (data / 'annotations' / 'training').iterdir():
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        labels[4, 9] = 77
        cv2.imwrite(str(path), labels)
    words = [SEMANTIC_FPN, '--work-dir', tmp_path / 'work', *options(data, workers)]
    done = run_forked(tmp_path, 'tools/train.py', *words)
    assert done.code == 2, done.err[-3000:]
    line = done.err.strip().splitlines()[-1]
    assert re.match(r"error: label map '.*' has 77 at x=9, y=4: labels must be 1 to 11, or 255 or 0", line)
    assert 'Traceback' not in done.err + done.out


@pytest.mark.slow
def test_a_coco_file_is_refused_before_anything_is_built(data: Path, tmp_path: Path) -> None:
    path = data / 'instances_train.json'
    path.write_text(path.read_text().replace('"category_id": ', '"category_id": 9', 1))
    words = [RETINANET, '--work-dir', tmp_path / 'work', *options(data, 2)]
    done = run_forked(tmp_path, 'tools/train.py', *words)
    assert done.code == 2, done.err[-3000:]
    assert re.search(r"error: '.*instances_train.json': annotation \d+ is of category 9\d", done.err)
    assert not list((tmp_path / 'work').glob('*/*.log'))


class Pictures(BaseDataset):
    """Images whose number is their brightness."""

    def load_data_list(self) -> list[dict]:
        return [{'img_path': str(path)} for path in sorted(Path(self.data_root).glob('*.png'))]


def write_pictures(folder: Path, count: int) -> None:
    folder.mkdir()
    for i in range(count):
        cv2.imwrite(str(folder / f'{i:02}.png'), np.full((4, 4, 3), i, np.uint8))


def skipping(folder: Path, limit: float) -> dict:
    return {'folder': str(folder / 'skipped'), 'name': 'dataset_0', 'limit': limit}


def pictures(folder: Path, limit: float | None) -> BaseDataset:
    config = {'type': Pictures, 'data_root': str(folder), 'pipeline': [{'type': 'inline.LoadImage'}]}
    return build_checked(config, None if limit is None else skipping(folder, limit))


SAMPLES = {
    'a training sample that cannot be read': Row(
        'skipped', 'bad data: 2 training samples were skipped', lambda: (2, 0.2)
    ),
    'more unreadable training samples than `bad_data.max_skipped`': Row(
        'stops', '3 of 10 training samples cannot be read', lambda: (3, 0.2)
    ),
    'no training sample that can be read': Row(
        'stops', 'not one of 10 samples can be read', lambda: (10, 10)
    ),
    'a validation or test sample that cannot be read': Row('stops', 'cannot be read', lambda: (10, None)),
    'a data set without samples': Row('refused', 'has no samples', lambda: (None, 0.2)),
}


@pytest.mark.parametrize('name', SAMPLES)
def test_samples_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    row, folder = SAMPLES[name], tmp_path / 'pictures'
    broken, limit = row.make()
    write_pictures(folder, 0 if broken is None else 10)
    for i in range(10 - (broken or 0), 10):
        (folder / f'{i:02}.png').write_bytes(b'')
    if row.outcome == 'skipped':
        dataset = pictures(folder, limit)
        # The next by index, round the end.
        assert [int(dataset[i]['img'].max()) for i in range(10)] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 0]
        assert describe_skipped(dataset.pipeline.skipped.read()).startswith(row.told)
        return
    with pytest.raises(UserError, match=row.told) as caught:
        [sample['img'] for sample in reversed(pictures(folder, limit))]
    assert str(folder) in str(caught.value)
    assert isinstance(caught.value, BadDataError) == (row.outcome == 'stops')


def test_the_page_has_the_rows_that_are_tested() -> None:
    tested: dict[str, Row] = {}
    for rows in (
        test_bad_images.UNREADABLE,
        test_bad_images.SIZES,
        test_bad_images.READ,
        test_bad_label_maps.BAD,
        test_bad_label_maps.GOOD,
        test_bad_coco.REFUSED,
        test_bad_coco.COUNTED,
        test_bad_classes.REFUSED,
        SAMPLES,
    ):
        assert not tested.keys() & rows.keys()
        tested |= rows
    page = table_rows(ROOT / 'docs' / 'bad_data.md')
    assert page == {name: (row.outcome, row.told) for name, row in tested.items()}
    assert len(page) >= 40


def test_a_sample_is_counted_once_whoever_meets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = SkippedSamples(total=100, **skipping(tmp_path, 2))
    for rank, message in (('0', 'a'), ('1', 'b'), ('1', 'a'), ('0', 'b'), ('0', 'a')):
        monkeypatch.setenv('RANK', rank)
        first.add(message)
    assert sorted(first.read()) == ['a', 'b']
    with pytest.raises(BadDataError, match=r'^3 of 100 training samples cannot be read'):
        first.add('c')
    assert SkippedSamples(total=101, **skipping(tmp_path, 0.01)).allowed == 2
    assert SkippedSamples(total=101, **skipping(tmp_path, 0)).allowed == 0


def test_counts_reach_the_main_process_from_all_workers(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    write_pictures(tmp_path / 'pictures', 12)
    for i in (3, 4, 11):
        (tmp_path / 'pictures' / f'{i:02}.png').write_bytes(b'no image')
    dataset = pictures(tmp_path / 'pictures', 0.5)
    loaded = {}
    for workers in (0, 2):
        loader = DataLoader(dataset, 2, num_workers=workers, collate_fn=list)
        loaded[workers] = [int(sample['img'].max()) for batch in loader for sample in batch]
    assert loaded[0] == loaded[2] == [0, 1, 2, 5, 5, 5, 6, 7, 8, 9, 10, 0]
    assert len(dataset.pipeline.skipped.read()) == 3
    assert isinstance(dataset.pipeline, SkipUnreadable)


@pytest.mark.parametrize('workers', [0, 1])
def test_an_error_in_a_worker_is_one_line(
    workers: int, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.data import DataLoader

    write_pictures(tmp_path / 'pictures', 2)
    (tmp_path / 'pictures' / '01.png').write_bytes(b'')
    # Another rank's data are not this one's: each tells its own.
    monkeypatch.setenv('RANK', '1')
    loader = DataLoader(pictures(tmp_path / 'pictures', None), 2, num_workers=workers, collate_fn=list)
    with pytest.raises(SystemExit) as left, exit_on_user_error():
        list(loader)
    assert left.value.code == 2
    expected = f'error: {str(tmp_path / "pictures" / "01.png")!r} cannot be read: the file is empty\n'
    assert capsys.readouterr().err == expected


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


def test_any_config_gets_our_readers_once(tmp_path: Path) -> None:
    cfg = config(test_bad_classes.write_folders(tmp_path), bad_data={'max_pixels': 5000})
    for _ in range(2):
        guard_data(cfg, ('train_dataloader', 'val_dataloader'))
    train, val = cfg.train_dataloader.dataset, cfg.val_dataloader.dataset
    assert train.type == 'RepeatDataset'
    assert train.dataset.type == val.type == 'InLineCheckedDataset'
    assert train.dataset.dataset.type == val.dataset.type == 'CustomDataset'
    step = {'type': 'inline.LoadImage', 'to_float32': True, 'max_pixels': 5000}
    assert train.dataset.dataset.pipeline == val.dataset.pipeline == [step]
    assert train.dataset.skipping.limit == 0.01
    assert 'skipping' not in val


def test_a_test_leaves_the_list_of_a_training_alone(tmp_path: Path) -> None:
    listed = tmp_path / 'work' / 'bad_data' / 'dataset_0_rank_0.txt'
    listed.parent.mkdir(parents=True)
    listed.write_text("'a.jpg' cannot be read: the file is empty\n")
    loader = {'dataset': {'type': 'ADE20KDataset', 'pipeline': []}}
    cfg = config(tmp_path, train_dataloader=loader, test_dataloader=loader)
    guard_data(cfg, ('test_dataloader',))
    assert read_skipped(listed.parent) == ["'a.jpg' cannot be read: the file is empty"]
    guard_data(cfg, ('train_dataloader',))
    assert not listed.exists()


def test_the_settings_are_checked(tmp_path: Path) -> None:
    for wrong, told in (
        ({'max_skiped': 1}, 'bad_data.max_skiped in the config: choose of max_skipped, max_pixels'),
        ({'max_skipped': 'few'}, "bad_data.max_skipped 'few' in the config: must be a number, 0 or more"),
        ({'max_pixels': -1}, 'bad_data.max_pixels -1 in the config: must be a number, 0 or more'),
    ):
        with pytest.raises(UserError, match=told):
            guard_data(config(tmp_path, bad_data=wrong), ())


def test_classes_are_compared_between_the_splits(tmp_path: Path) -> None:
    root = test_bad_classes.write_folders(tmp_path)
    (root / 'val' / 'bee').rename(root / 'val' / 'wasp')
    with pytest.raises(UserError, match=r"class folder 'bee' is only in that of training: '.*val' must have"):
        guard_data(config(root), ('train_dataloader', 'val_dataloader'))


def test_long_images_go_through_the_pipelines_of_all_toolboxes(tmp_path: Path) -> None:
    from mmengine.dataset import Compose
    from mmengine.registry import DefaultScope

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
    with pytest.raises(UnreadableError, match='101x1 pixels: one side may be 100 times the other'):
        Compose([{'type': 'inline.LoadImage'}])({'img_path': str(path)})
