"""Each kind of fault, planted into a small copy of ImageNet in folders or zips, is named."""

import shutil
import zipfile
from pathlib import Path

import pytest

from inline.datasets.prepare.imagenet import ImageNetSpec, check
from inline.datasets.prepare.images import Decoding
from tests.datasets.zips import pack

SMALL = ImageNetSpec(train=4, val=4, classes=2)


@pytest.fixture
def labelled(data_sets: Path) -> Path:
    """With files of labels in meta/."""
    return data_sets / 'imagenet'


@pytest.fixture
def imagenet(labelled: Path) -> Path:
    shutil.rmtree(labelled / 'meta')
    return labelled


def problems(root: Path, spec: ImageNetSpec = SMALL) -> list[str]:
    return [f'{part.name}: {problem}' for part in check(root, Decoding(), spec) for problem in part.problems]


@pytest.mark.parametrize('leading', [None, '', 'train/'])
def test_a_whole_copy_has_no_problem(imagenet: Path, leading: str | None) -> None:
    if leading is not None:
        pack(imagenet / 'train', leading)
        pack(imagenet / 'val')
    parts = check(imagenet, Decoding(), SMALL)
    assert [part.problems for part in parts] == [[], []]
    assert [part.found for part in parts] == ['4 images in 2 class folders'] * 2


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


def test_nothing_there(tmp_path: Path) -> None:
    assert problems(tmp_path) == [
        'train: there is neither a folder train nor a file train.zip',
        'val: there is neither a folder val nor a file val.zip',
    ]


@pytest.mark.parametrize('packed', [False, True])
def test_class_folders_are_compared(imagenet: Path, packed: bool) -> None:
    (imagenet / 'val' / 'n00000001').rename(imagenet / 'val' / 'tench')
    name = 'val'
    if packed:
        name = pack(imagenet / 'val').name
    assert problems(imagenet) == [
        f'{name}: class folders that are not named like n01440764: 1 (tench)',
        f'{name}: classes that train has and val has not: 1 (n00000001)',
        f'{name}: classes that val has and train has not: 1 (tench)',
    ]


def test_empty_classes_are_told(imagenet: Path) -> None:
    for path in (imagenet / 'train' / 'n00000000').iterdir():
        path.rename(imagenet / 'train' / 'n00000001' / f'more_{path.name}')
    assert problems(imagenet) == ['train: class folders without an image: 1 (n00000000)']


@pytest.mark.parametrize('packed', [False, True])
def test_broken_images_are_decoded(imagenet: Path, packed: bool) -> None:
    image = imagenet / 'train' / 'n00000001' / '1.JPEG'
    image.write_bytes(image.read_bytes()[:-100])
    (imagenet / 'train' / 'n00000000' / '0.JPEG').write_bytes(b'')
    if packed:
        pack(imagenet / 'train')
    (line,) = problems(imagenet)
    assert 'images that cannot be decoded: 2 (n00000000/0.JPEG: ' in line
    assert 'n00000001/1.JPEG: image file is truncated' in line


def test_a_member_that_changed_inside_the_zip_is_told(imagenet: Path) -> None:
    packed = pack(imagenet / 'train')
    with zipfile.ZipFile(packed) as file:
        content = file.read('n00000001/1.JPEG')
    packed.write_bytes(packed.read_bytes().replace(content, content[::-1]))
    (line,) = problems(imagenet)
    assert line.startswith('train.zip: images that cannot be decoded: 1 (n00000001/1.JPEG: ')
    assert 'check sum' in line


def test_a_zip_that_is_cut_off_is_told(imagenet: Path) -> None:
    packed = pack(imagenet / 'train')
    packed.write_bytes(packed.read_bytes()[:-50])
    (line,) = problems(imagenet)
    assert line.startswith('train.zip: ')
    assert 'cannot be read as a zip' in line


def flatten(folder: Path) -> list[str]:
    """Move all images out of their class folders; their names."""
    for path in sorted(folder.glob('*/*')):
        path.rename(folder / f'{path.parent.name}_{path.name}')
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
    return sorted(path.name for path in folder.iterdir())


def test_images_in_no_class_folder_need_labels(imagenet: Path) -> None:
    flatten(imagenet / 'val')
    assert (
        'val: images in no class folder, without labels in meta/val.txt: 4 '
        '(n00000000_0.JPEG, n00000000_1.JPEG, n00000001_0.JPEG, …)'
    ) in problems(imagenet)


@pytest.mark.parametrize('packed', [False, True])
def test_labels_of_images_in_one_place(imagenet: Path, packed: bool) -> None:
    names = flatten(imagenet / 'val')
    labels = imagenet / ('val_map.txt' if packed else 'meta/val.txt')
    labels.parent.mkdir(exist_ok=True)
    if packed:
        pack(imagenet / 'val')
    part = 'val.zip' if packed else 'val'
    labels.write_text(''.join(f'{name}\t{label // 2}\n' for label, name in enumerate(names)))
    assert problems(imagenet) == []
    labels.write_text('gone.JPEG 0\n' + ''.join(f'{name} 2\n' for name in names[1:]))
    assert problems(imagenet) == [
        f'{part}: images that {labels.name} names and that are missing: 1 (gone.JPEG)',
        f'{part}: images that {labels.name} does not name: 1 ({names[0]})',
        f'{part}: labels that are not from 0 to 1: 3 ({names[1]}, {names[2]}, {names[3]})',
        f'{part}: labels of no image: 1 (1)',
    ]
    labels.write_text(f'{names[0]} tench\n')
    (line,) = problems(imagenet)
    assert line.startswith(f'{part}: {labels.name} must have a name and a whole number a line')


def test_labels_in_another_order_than_the_classes_are_told(labelled: Path) -> None:
    assert problems(labelled) == []
    path = labelled / 'meta' / 'val.txt'
    path.write_text('\n'.join(f'{line[:-1]}{1 - int(line[-1])}' for line in path.read_text().splitlines()))
    assert problems(labelled) == [
        'val: labels that are not the place of the class among the sorted classes: 4 '
        '(n00000000/0.JPEG: 1 for 0, n00000000/1.JPEG: 1 for 0, n00000001/0.JPEG: 0 for 1, …)'
    ]
