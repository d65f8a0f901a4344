"""Invalid class folders and annotation files of classification raise an error before training."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from inline.datasets.validation.classes import (
    check_annotation_file,
    check_class_folders,
    check_same_classes,
    check_zip_folders,
)
from inline.utils.errors import UserError
from tests.datasets.invalid_data import Case, picture
from tests.datasets.zips import pack


def write_folders(root: Path) -> Path:
    for split in ('train', 'val'):
        for name in ('ant', 'bee', 'cow'):
            (root / split / name).mkdir(parents=True)
            picture().save(root / split / name / '0.png')
    return root


def annotated(text: str | bytes) -> Callable[[Path], None]:
    def check(root: Path) -> None:
        path = root / 'train.txt'
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        check_annotation_file(path, 3)

    return check


def emptied(*names: str) -> Callable[[Path], None]:
    """Return a check after removing the training images of some classes but not their folders."""

    def check(root: Path) -> None:
        for name in names:
            (root / 'train' / name / '0.png').rename(root / 'train' / name / 'notes.txt')
        check_class_folders(root / 'train', 3, require_images=True)

    return check


def no_folders(root: Path) -> None:
    shutil.rmtree(root / 'train')
    (root / 'train').mkdir()
    picture().save(root / 'train' / '0.png')
    check_class_folders(root / 'train', 3, require_images=True)


def renamed(root: Path) -> None:
    (root / 'val' / 'bee').rename(root / 'val' / 'wasp')
    names = [check_class_folders(root / split, 3, require_images=True) for split in ('train', 'val')]
    check_same_classes(*names, root / 'val')


def fewer_in_zip(root: Path) -> None:
    shutil.rmtree(root / 'train' / 'bee')
    check_zip_folders(pack(root / 'train'), 3)


REJECTED = {
    name: Case('rejected', message, make)
    for name, message, make in (
        ('a class folder without images', "/bee' has no images", emptied('bee')),
        ('class folders without any image', "/ant' has no images", emptied('ant', 'bee', 'cow')),
        ('images that are not in class folders', 'has no class folders', no_folders),
        (
            'more or fewer class folders than classes',
            'has 3 class folders, but the config has 4 classes',
            lambda root: check_class_folders(root / 'val', 4, require_images=False),
        ),
        (
            'more or fewer class folders in a zip',
            'has 2 class folders, but the config has 3 classes',
            fewer_in_zip,
        ),
        (
            'class folders that differ between training and validation',
            "class folder 'bee' is only in the training split",
            renamed,
        ),
        (
            'an empty annotation text file',
            'is empty: must have one image name and label per line',
            annotated(''),
        ),
        (
            'a line without a label',
            "line 2: 'b.png' must be an image name and a label",
            annotated('a.png 0\nb.png\n'),
        ),
        ('a line without an image', "line 1: '2' must be an image name and a label", annotated('2\n')),
        (
            'an empty line',
            "line 2: '' must be an image name and a label",
            annotated('a.png 0\n\nb.png 1\n'),
        ),
        (
            'a label that is not a number',
            "line 1: 'a.png cat' must be an image name and a label",
            annotated('a.png cat\n'),
        ),
        (
            'a label above the number of classes',
            'line 2: label 3 must be 0 to 2, because the config has 3 classes',
            annotated('a.png 0\nb.png 3\n'),
        ),
        (
            'a negative label',
            'line 1: label -1 must be 0 to 2, because the config has 3 classes',
            annotated('a.png -1\n'),
        ),
        (
            'a line with an absolute path',
            "line 1: '/dev/zero' is absolute: must be a path inside the image folder",
            annotated('/dev/zero 1\n'),
        ),
        ('an annotation file that is not text', 'cannot be read', annotated(b'\xff\xfe\x00a\xd8')),
    )
}


@pytest.mark.parametrize('name', REJECTED)
def test_invalid_classes_raise_with_file_and_reason(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        REJECTED[name].make(write_folders(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert REJECTED[name].message in str(caught.value)
    assert '\n' not in str(caught.value)


def test_valid_folders_and_annotation_files_pass(tmp_path: Path) -> None:
    root = write_folders(tmp_path)
    (root / 'train' / 'cow' / '0.png').unlink()
    (root / 'train' / 'cow' / 'nested').mkdir()
    picture().save(root / 'train' / 'cow' / 'nested' / '0.PNG')
    assert check_class_folders(root / 'train', 3, require_images=True) == ['ant', 'bee', 'cow']
    (root / 'val' / 'bee' / '0.png').unlink()
    assert check_class_folders(root / 'val', 3, require_images=False) == ['ant', 'bee', 'cow']
    annotated('a.png 0\nof my dog/b 1.png 2\n')(root)
    (root / 'train_map.txt').write_text('a.png 0\n\nc.png\t1\n')
    check_annotation_file(root / 'train_map.txt', 3, any_whitespace=True)
    assert check_zip_folders(pack(root / 'train'), 3) == ['ant', 'bee', 'cow']
