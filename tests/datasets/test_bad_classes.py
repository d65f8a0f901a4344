"""Folders of classes and lists of labels of every bad kind: refused before training."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from inline.datasets.class_check import check_folders, check_list, check_same, zip_folders
from inline.errors import UserError
from tests.datasets.bad_data import Row, picture
from tests.datasets.zips import pack


def write_folders(root: Path) -> Path:
    for split in ('train', 'val'):
        for name in ('ant', 'bee', 'cow'):
            (root / split / name).mkdir(parents=True)
            picture().save(root / split / name / '0.png')
    return root


def listed(text: str | bytes) -> Callable[[Path], None]:
    def check(root: Path) -> None:
        path = root / 'train.txt'
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        check_list(path, 3)

    return check


def emptied(*names: str) -> Callable[[Path], None]:
    """Training images gone, the folders left."""

    def check(root: Path) -> None:
        for name in names:
            (root / 'train' / name / '0.png').rename(root / 'train' / name / 'notes.txt')
        check_folders(root / 'train', 3, needs_all=True)

    return check


def no_folders(root: Path) -> None:
    shutil.rmtree(root / 'train')
    (root / 'train').mkdir()
    picture().save(root / 'train' / '0.png')
    check_folders(root / 'train', 3, needs_all=True)


def renamed(root: Path) -> None:
    (root / 'val' / 'bee').rename(root / 'val' / 'wasp')
    names = [check_folders(root / split, 3, needs_all=True) for split in ('train', 'val')]
    check_same(*names, root / 'val')


def fewer_in_zip(root: Path) -> None:
    shutil.rmtree(root / 'train' / 'bee')
    zip_folders(pack(root / 'train'), 3)


REFUSED = {
    'a class folder without images': Row('refused', "/bee' has no images", emptied('bee')),
    'class folders without any image': Row('refused', "/ant' has no images", emptied('ant', 'bee', 'cow')),
    'images that are not in class folders': Row('refused', 'has no folders', no_folders),
    'more or fewer class folders than classes': Row(
        'refused',
        'has 3 class folders, and the config has 4 classes',
        lambda root: check_folders(root / 'val', 4, needs_all=False),
    ),
    'more or fewer class folders in a zip': Row(
        'refused', 'has 2 class folders, and the config has 3 classes', fewer_in_zip
    ),
    'class folders that differ between training and validation': Row(
        'refused', "class folder 'bee' is only in that of training", renamed
    ),
    'an empty list of labels': Row(
        'refused', 'is empty: must have an image and its label a line', listed('')
    ),
    'a line without a label': Row(
        'refused', "line 2: 'b.png' must be an image and its label", listed('a.png 0\nb.png\n')
    ),
    'a line without an image': Row('refused', "line 1: '2' must be an image and its label", listed('2\n')),
    'an empty line in a list': Row(
        'refused', "line 2: '' must be an image and its label", listed('a.png 0\n\nb.png 1\n')
    ),
    'a label that is a word': Row(
        'refused', "line 1: 'a.png cat' must be an image and its label", listed('a.png cat\n')
    ),
    'a label in a list beyond the classes': Row(
        'refused',
        'line 2: label 3, and the config has 3 classes: must be 0 to 2',
        listed('a.png 0\nb.png 3\n'),
    ),
    'a negative label in a list': Row(
        'refused', 'line 1: label -1, and the config has 3 classes: must be 0 to 2', listed('a.png -1\n')
    ),
    'a list that is not text': Row('refused', 'cannot be read', listed(b'\xff\xfe\x00a\xd8')),
}


@pytest.mark.parametrize('name', REFUSED)
def test_refused_with_file_and_reason(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        REFUSED[name].make(write_folders(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert REFUSED[name].told in str(caught.value)
    assert '\n' not in str(caught.value)


def test_good_folders_and_lists_pass(tmp_path: Path) -> None:
    root = write_folders(tmp_path)
    assert check_folders(root / 'train', 3, needs_all=True) == ['ant', 'bee', 'cow']
    (root / 'val' / 'bee' / '0.png').unlink()
    assert check_folders(root / 'val', 3, needs_all=False) == ['ant', 'bee', 'cow']
    listed('a.png 0\nof my dog/b 1.png 2\n')(root)
    (root / 'train_map.txt').write_text('a.png 0\n\nc.png\t1\n')
    check_list(root / 'train_map.txt', 3, separator=None)
    assert zip_folders(pack(root / 'train'), 3) == ['ant', 'bee', 'cow']
