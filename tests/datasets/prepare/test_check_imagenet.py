"""Every kind of problem in a copy of ImageNet, in folders or zips, is reported."""

import shutil
import zipfile
from pathlib import Path

import pytest

from inline.datasets.prepare.imagenet import ImageNetSpec, check
from inline.datasets.prepare.inspection import Decoding
from tests.datasets.zips import pack

SMALL = ImageNetSpec(train=4, val=4, classes=2)


@pytest.fixture
def labelled(datasets: Path) -> Path:
    """ImageNet with label files in meta/."""
    return datasets / 'imagenet'


@pytest.fixture
def imagenet(labelled: Path) -> Path:
    shutil.rmtree(labelled / 'meta')
    return labelled


def problems(root: Path, spec: ImageNetSpec = SMALL) -> list[str]:
    return [
        f'{report.name}: {problem}' for report in check(root, Decoding(), spec) for problem in report.problems
    ]


@pytest.mark.parametrize('leading', [None, '', 'train/'])
def test_a_complete_copy_has_no_problems(imagenet: Path, leading: str | None) -> None:
    if leading is not None:
        pack(imagenet / 'train', leading)
        pack(imagenet / 'val')
    reports = check(imagenet, Decoding(), SMALL)
    assert [report.problems for report in reports] == [[], []]
    assert [report.found for report in reports] == ['4 images in 2 class folders'] * 2


@pytest.mark.parametrize('packed', [False, True])
def test_the_public_counts_and_source(imagenet: Path, packed: bool) -> None:
    if packed:
        pack(imagenet / 'train')
        pack(imagenet / 'val')
    train, val = check(imagenet, None)
    assert train.problems == ['images: 4, expected 1,281,167', 'class folders: 2, expected 1,000']
    assert val.problems == ['images: 4, expected 50,000', 'class folders: 2, expected 1,000']
    assert train.source.startswith('https://image-net.org/challenges/LSVRC/2012/')
    assert val.source.endswith('ILSVRC2012_img_val.tar')


def test_missing_splits_are_reported(tmp_path: Path) -> None:
    assert problems(tmp_path) == [
        'train: there is no folder train and no file train.zip',
        'val: there is no folder val and no file val.zip',
    ]


@pytest.mark.parametrize('packed', [False, True])
def test_class_folders_of_both_splits_are_compared(imagenet: Path, packed: bool) -> None:
    (imagenet / 'val' / 'n00000001').rename(imagenet / 'val' / 'tench')
    name = 'val'
    if packed:
        name = pack(imagenet / 'val').name
    assert problems(imagenet) == [
        f'{name}: class folders not named like n01440764: 1 (tench)',
        f'{name}: classes only in train: 1 (n00000001)',
        f'{name}: classes only in val: 1 (tench)',
    ]


def test_empty_class_folders_are_reported(imagenet: Path) -> None:
    for path in (imagenet / 'train' / 'n00000000').iterdir():
        path.rename(imagenet / 'train' / 'n00000001' / f'more_{path.name}')
    assert problems(imagenet) == ['train: class folders without images: 1 (n00000000)']


@pytest.mark.parametrize('packed', [False, True])
def test_damaged_images_are_reported(imagenet: Path, packed: bool) -> None:
    image = imagenet / 'train' / 'n00000001' / '1.JPEG'
    image.write_bytes(image.read_bytes()[:-100])
    (imagenet / 'train' / 'n00000000' / '0.JPEG').write_bytes(b'')
    if packed:
        pack(imagenet / 'train')
    (line,) = problems(imagenet)
    assert 'images that cannot be decoded: 2 (n00000000/0.JPEG: ' in line
    assert 'n00000001/1.JPEG: image file is truncated' in line


def test_a_damaged_zip_member_is_reported(imagenet: Path) -> None:
    packed = pack(imagenet / 'train')
    with zipfile.ZipFile(packed) as file:
        content = file.read('n00000001/1.JPEG')
    packed.write_bytes(packed.read_bytes().replace(content, content[::-1]))
    (line,) = problems(imagenet)
    assert line.startswith('train.zip: images that cannot be decoded: 1 (n00000001/1.JPEG: ')
    assert 'checksum' in line


def test_a_truncated_zip_is_reported(imagenet: Path) -> None:
    packed = pack(imagenet / 'train')
    packed.write_bytes(packed.read_bytes()[:-50])
    (line,) = problems(imagenet)
    assert line.startswith('train.zip: ')
    assert 'cannot be read as a zip' in line


def flatten(folder: Path) -> list[str]:
    """Move all images out of their class folders and return their new names."""
    for path in sorted(folder.glob('*/*')):
        path.rename(folder / f'{path.parent.name}_{path.name}')
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
    return sorted(path.name for path in folder.iterdir())


def test_images_outside_class_folders_need_labels(imagenet: Path) -> None:
    flatten(imagenet / 'val')
    assert (
        'val: images outside class folders, without labels in meta/val.txt: 4 '
        '(n00000000_0.JPEG, n00000000_1.JPEG, n00000001_0.JPEG, …)'
    ) in problems(imagenet)


@pytest.mark.parametrize('packed', [False, True])
def test_labels_of_images_without_class_folders(imagenet: Path, packed: bool) -> None:
    names = flatten(imagenet / 'val')
    labels = imagenet / ('val_map.txt' if packed else 'meta/val.txt')
    labels.parent.mkdir(exist_ok=True)
    if packed:
        pack(imagenet / 'val')
    name = 'val.zip' if packed else 'val'
    labels.write_text(''.join(f'{image}\t{label // 2}\n' for label, image in enumerate(names)))
    assert problems(imagenet) == []
    labels.write_text('gone.JPEG 0\n' + ''.join(f'{image} 2\n' for image in names[1:]))
    assert problems(imagenet) == [
        f'{name}: images in {labels.name} that are missing: 1 (gone.JPEG)',
        f'{name}: images that are not in {labels.name}: 1 ({names[0]})',
        f'{name}: labels that are not from 0 to 1: 3 ({names[1]}, {names[2]}, {names[3]})',
        f'{name}: labels without images: 1 (1)',
    ]
    labels.write_text(f'{names[0]} tench\n')
    (line,) = problems(imagenet)
    assert line.startswith(f'{name}: {labels.name} must have a name and an integer per line')


def test_labels_in_another_order_than_the_classes_are_reported(labelled: Path) -> None:
    assert problems(labelled) == []
    path = labelled / 'meta' / 'val.txt'
    path.write_text('\n'.join(f'{line[:-1]}{1 - int(line[-1])}' for line in path.read_text().splitlines()))
    assert problems(labelled) == [
        'val: labels that differ from the index of the sorted class folder: 4 '
        '(n00000000/0.JPEG: 1 instead of 0, n00000000/1.JPEG: 1 instead of 0, '
        'n00000001/0.JPEG: 0 instead of 1, …)'
    ]
