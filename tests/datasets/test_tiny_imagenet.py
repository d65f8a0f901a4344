"""Tiny-ImageNet from its folder and from its zip: samples, boxes, classes, and invalid files."""

import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.fileio import get

from inline.datasets.prepare import tiny_imagenet as preparation
from inline.datasets.prepare.inspection import Decoding
from inline.datasets.prepare.run import DATASETS, locate
from inline.datasets.tiny_imagenet import TinyImageNet, read_classes, read_split
from inline.datasets.validation.checks import check_paths
from inline.engine.config import load_config, set_data_root
from inline.registry import DATASETS as REGISTRY
from inline.reproduce.provenance import data_digest
from inline.utils.errors import UserError
from tests.configs.tiny_datasets import write_tiny_imagenet
from tests.conftest import ROOT
from tests.datasets.zips import pack

check = partial(preparation.check, spec=preparation.TinyImageNetSpec(train=4, val=2, classes=2))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tiny_imagenet(tmp_path)


@pytest.mark.parametrize('leading', ['', 'tiny-imagenet-200/'])
def test_the_zip_gives_the_samples_of_the_folder(root: Path, leading: str) -> None:
    of_folder = [
        (Path(sample.path).name, get(sample.path), sample.label, sample.box)
        for split in ('train', 'val')
        for sample in read_split(root, split)
    ]
    classes = read_classes(root)
    pack(root, leading, zipfile.ZIP_DEFLATED)
    of_zip = [
        (sample.path.rpartition('/')[2], get(sample.path), sample.label, sample.box)
        for split in ('train', 'val')
        for sample in read_split(root, split)
    ]
    assert of_zip == of_folder
    assert read_classes(root) == classes


def test_labels_follow_the_sorted_wordnet_ids_and_boxes_include_their_last_pixel(root: Path) -> None:
    assert read_classes(root) == {'n00000001': 'goldfish', 'n00000002': 'tabby'}
    train = [(Path(sample.path).name, sample.label, sample.box) for sample in read_split(root, 'train')]
    assert train == [
        ('n00000001_0.JPEG', 0, (1, 10, 41, 64)),
        ('n00000001_1.JPEG', 0, (1, 10, 41, 64)),
        ('n00000002_0.JPEG', 1, (0, 10, 41, 64)),
        ('n00000002_1.JPEG', 1, (0, 10, 41, 64)),
    ]
    val = [(Path(sample.path).name, sample.label, sample.box) for sample in read_split(root, 'val')]
    assert val == [('val_0.JPEG', 1, (0, 0, 64, 64)), ('val_1.JPEG', 0, (0, 0, 64, 64))]


def test_the_datasets_of_both_toolboxes_read_it(root: Path) -> None:
    path = str(pack(root))
    classification = TinyImageNet(path, 'val', [{'type': 'inline.LoadImage'}])
    assert classification.metainfo['classes'] == ('goldfish', 'tabby')
    assert [(sample['gt_label'], sample['img'].shape) for sample in classification] == [
        (1, (64, 64, 3)),
        (0, (64, 64, 3)),
    ]
    boxes = REGISTRY.build({'type': 'inline.TinyImageNetBoxes', 'data_root': path, 'split': 'train'})
    assert boxes.metainfo['classes'] == ('goldfish', 'tabby')
    assert boxes.get_data_info(2)['instances'] == [
        {'bbox': [0, 10, 41, 64], 'bbox_label': 1, 'ignore_flag': 0}
    ]


def test_a_run_accepts_the_zip_in_place_of_the_folder(root: Path) -> None:
    cfg = load_config(ROOT / 'configs/tiny_imagenet/inline-pvt-micro_tiny-imagenet.py')
    set_data_root(cfg, root.parent)
    pack(root)
    check_paths(cfg, ('train_dataloader', 'val_dataloader'))
    root.with_name(f'{root.name}.zip').unlink()
    with pytest.raises(UserError, match=r'prepare_data.py tiny-imagenet PATH'):
        check_paths(cfg, ('train_dataloader', 'val_dataloader'))


@pytest.mark.parametrize(
    ('file', 'text', 'message'),
    [
        ('words.txt', 'goldfish\n', "line 1: 'goldfish' must be a WordNet id, a tab and names"),
        ('train/n00000001/n00000001_boxes.txt', 'a.JPEG\t1\t2\t3\n', 'must end with four integers'),
        ('val/val_annotations.txt', 'a.JPEG\tn1\t0\t0\t1\t1\n', "class 'n1' is not in wnids.txt"),
        ('val/val_annotations.txt', 'a.JPEG\tn1\t0\t0\tx\t1\n', 'must end with four integers'),
    ],
)
def test_invalid_annotations_are_named(root: Path, file: str, text: str, message: str) -> None:
    (root / file).write_text(text)
    with pytest.raises(UserError, match=message):
        [read_split(root, split) for split in ('train', 'val')]


def test_an_unknown_split_and_a_missing_file_are_named(root: Path) -> None:
    with pytest.raises(UserError, match="split 'test' of Tiny-ImageNet: must be one of train, val"):
        read_split(root, 'test')
    (root / 'wnids.txt').unlink()
    with pytest.raises(UserError, match=r'wnids\.txt cannot be read'):
        read_classes(root)


def test_the_check_reports_missing_broken_and_superfluous_images(root: Path) -> None:
    (root / 'train/n00000001/images/n00000001_0.JPEG').unlink()
    (root / 'train/n00000002/images/n00000002_0.JPEG').write_bytes(b'\xff\xd8broken')
    (root / 'val/images/more.JPEG').write_bytes(b'')
    classes, train, val = check(root, Decoding(1))
    assert classes.problems == []
    assert train.problems == [
        'images: 3, expected 4',
        'annotated images that are missing: 1 (n00000001_0.JPEG)',
        f'images that cannot be decoded: 1 ({root}/train/n00000002/images/n00000002_0.JPEG: not an image)',
    ]
    assert val.problems == ['images: 3, expected 2', 'images without annotation: 1 (more.JPEG)']


def test_the_check_takes_a_folder_a_parent_folder_and_a_zip(root: Path) -> None:
    dataset = DATASETS['tiny-imagenet']
    assert locate(dataset, root) == locate(dataset, root.parent) == root
    path = pack(root, 'tiny-imagenet-200/')
    assert locate(dataset, path) == locate(dataset, path.parent) == path
    assert [report.problems for report in check(path, Decoding(1))] == [[], [], []]


def test_cached_images_are_read_once_and_not_changed_by_later_transforms(root: Path) -> None:
    load = [{'type': 'inline.LoadImage'}, {'type': 'Resize', 'scale': (32, 32)}]
    plain = TinyImageNet(str(root), 'train', load)
    cached = TinyImageNet(str(root), 'train', [{'type': 'inline.CacheImages', 'transforms': load}])
    first = cached[2]
    assert set(first) == set(plain[2])
    assert first['sample_idx'] == 2
    assert np.array_equal(first['img'], plain[2]['img'])
    first['img'][:] = 0
    (root / 'train' / 'n00000002' / 'images' / 'n00000002_0.JPEG').unlink()
    again = cached[2]
    assert again['img'].any()
    assert again['gt_label'] == 1
    assert not np.array_equal(cached[1]['img'], again['img'])


def test_a_zip_of_all_splits_is_part_of_the_data_digest(root: Path) -> None:
    cfg = Config({'train_dataloader': {'dataset': {'data_root': str(root), 'split': 'train'}}})
    pack(root, 'tiny-imagenet-200/', zipfile.ZIP_STORED)
    digest = data_digest(cfg, ['train'])
    with zipfile.ZipFile(root.with_suffix('.zip'), 'a') as file:
        file.writestr('tiny-imagenet-200/train/n00000001/images/more.JPEG', b'')
    assert data_digest(cfg, ['train']) != digest
