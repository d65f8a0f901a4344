"""Class folders and CSV files of a user, and errors about incomplete ones."""

import random
from collections import Counter
from pathlib import Path

import pytest

from inline.datasets.custom import CustomData
from inline.datasets.custom.layouts import hold_out
from inline.utils.errors import UserError
from tests.datasets.custom import made
from tests.datasets.custom.reading import read


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / 'data'


def listed(data: CustomData, split: str) -> dict[str, str]:
    """Return the class of each image in the list that mmpretrain reads."""
    lines = Path(data.dataset[split]['ann_file']).read_text().splitlines()
    pairs = [line.rsplit(' ', 1) for line in lines]
    return {path: data.classes[int(label)] for path, label in pairs}


@pytest.mark.parametrize('val', ['val', 'valid', 'validation', 'test', 'Val'])
def test_common_names_of_the_validation_folder(val: str, root: Path) -> None:
    data = read('image-folder', made.class_folders(root, val))
    assert data.classes == ('cat', 'dog')
    split = 'test' if val == 'test' else 'val'
    assert data.images == {'train': 8, split: 4}
    assert listed(data, split)[f'{val}/dog/val_0.jpg'] == 'dog'


def test_links_are_followed_and_hidden_files_are_not_read(root: Path, tmp_path: Path) -> None:
    made.class_folders(root)
    made.write_image(tmp_path / 'elsewhere' / 'a.png')
    (root / 'train' / 'hen').symlink_to(tmp_path / 'elsewhere')
    (root / 'train' / 'cat' / 'linked.png').symlink_to(tmp_path / 'elsewhere' / 'a.png')
    (root / 'train' / 'cat' / 'loop').symlink_to(root / 'train' / 'cat')
    made.write_image(root / 'train' / '.cache' / 'a.png')
    made.write_image(root / 'train' / 'dog' / '._a.png')
    made.write_image(root / '__MACOSX' / 'a.png')
    (root / 'train' / 'dog' / 'notes.txt').write_text('not an image')
    data = read('image-folder', root)
    assert data.classes == ('cat', 'dog', 'hen')
    assert data.images == {'train': 10, 'val': 4}
    assert listed(data, 'train')['train/hen/a.png'] == 'hen'
    assert data.notes == ('custom data: val has no image of 1 classes: hen',)


def test_a_validation_set_without_some_classes_keeps_the_labels(root: Path) -> None:
    made.class_folders(root)
    made.write_image(root / 'train' / 'ant' / 'a.png')
    data = read('image-folder', root)
    assert data.classes == ('ant', 'cat', 'dog')
    assert set(listed(data, 'val').values()) == {'cat', 'dog'}


def test_held_out_images_depend_on_their_names_alone(root: Path) -> None:
    made.flat_folders(root, count=10)
    first, second = (read('image-folder', root, val_split=0.2) for _ in range(2))
    assert listed(first, 'val') == listed(second, 'val')
    assert Counter(listed(first, 'val').values()) == {'cat': 2, 'dog': 2}
    assert not listed(first, 'val').keys() & listed(first, 'train').keys()
    assert first.images == {'train': 16, 'val': 4}
    samples = [f'{i}.png' for i in range(50)]
    shuffled = random.Random(0).sample(samples, 50)
    parts = [hold_out(names, 0.1, key=str) for names in (samples, shuffled)]
    assert sorted(parts[0][1]) == sorted(parts[1][1])
    assert len(parts[0][1]) == 5
    # Adding an image moves no other from one part to the other, apart from the last one that is held out.
    assert len({*parts[0][1]} - {*hold_out([*samples, 'new.png'], 0.1, key=str)[1]}) <= 1


def test_splits_that_a_run_needs(root: Path) -> None:
    made.flat_folders(root)
    with pytest.raises(
        UserError, match=r'has no val split: hold out part of the images with --val-split 0\.1'
    ):
        read('image-folder', root)
    assert read('image-folder', root, needs_val=False).images == {'train': 12}
    with pytest.raises(UserError, match='give --val-split as in training'):
        read('image-folder', root, phase='test')
    assert read('image-folder', root, phase='test', val_split=1).images == {'val': 12}
    for fraction, message in ((1, 'leaves no image to train on'), (0, 'must be above 0'), (1.5, 'below 1')):
        with pytest.raises(UserError, match=message):
            read('image-folder', root, val_split=fraction)
    made.class_folders(root / 'divided')
    with pytest.raises(UserError, match=r'--val-split 0\.1: .* already has a val split'):
        read('image-folder', root / 'divided', val_split=0.1)


def test_a_root_with_val_alone_is_enough_to_test(root: Path) -> None:
    made.class_folders(root)
    (root / 'train').rename(root.parent / 'train')
    assert read('image-folder', root, phase='test').images == {'val': 4}
    with pytest.raises(UserError, match=r'has no train split, only val: this is enough for tools/test\.py'):
        read('image-folder', root)


def test_tiny_imagenet_as_published(root: Path) -> None:
    for name in ('n01', 'n02'):
        made.write_image(root / 'train' / name / 'images' / f'{name}_0.JPEG')
    for i in range(2):
        made.write_image(root / 'val' / 'images' / f'val_{i}.JPEG')
        made.write_image(root / 'test' / 'images' / f'test_{i}.JPEG')
    made.write_text(
        root / 'val' / 'val_annotations.txt', 'val_0.JPEG\tn02\t0\t0\t62\t57\nval_1.JPEG\tn01\t5\t5\t9\t9\n'
    )
    data = read('image-folder', root)
    assert data.images == {'train': 2, 'val': 2}
    assert listed(data, 'val') == {'val/images/val_0.JPEG': 'n02', 'val/images/val_1.JPEG': 'n01'}
    assert 'has no class folders and is not used' in data.notes[0]


def test_an_unpacked_archive_with_one_folder(root: Path) -> None:
    made.class_folders(root / 'photos')
    assert read('image-folder', root).images == {'train': 8, 'val': 4}


@pytest.mark.parametrize(
    'text',
    ['path,label\n{}', 'filename,width,class\n{wide}', '{}', '\ufeffLabel;Path\n{swapped}'.replace(';', ',')],
)
def test_columns_of_a_csv_file(text: str, root: Path) -> None:
    rows = [(f'a/{i} b.png', str(i % 3 * 5)) for i in range(6)]
    for path, _ in rows:
        made.write_image(root / path)
    content = text.format(
        '\n'.join(','.join(row) for row in rows),
        wide='\n'.join(f'{path},64,{label}' for path, label in rows),
        swapped='\n'.join(f'{label},{path}' for path, label in rows),
    )
    file = made.write_text(root / 'labels.csv', content)
    for path in (root, file):
        data = read('image-folder', path, val_split=0.5)
        # Numbers are sorted as numbers.
        assert data.classes == ('0', '5', '10')
        assert {**listed(data, 'train'), **listed(data, 'val')} == dict(rows)


def test_incomplete_folders(root: Path) -> None:
    with pytest.raises(UserError, match=r"'.*nowhere' does not exist: give yours with --data-root"):
        read('image-folder', root.parent / 'nowhere')
    made.class_folders(root)
    made.write_image(root / 'val' / 'bee' / '0.png')
    with pytest.raises(UserError, match=r"class 'bee' is in val but not in train of"):
        read('image-folder', root)
    (root / 'train' / 'bee').mkdir()
    with pytest.raises(UserError, match=r"class folder '.*train/bee' has no images"):
        read('image-folder', root)
    for split in ('train', 'val'):
        made.write_image(root.parent / 'flat' / split / '0.png')
    with pytest.raises(UserError, match='has no images in class folders'):
        read('image-folder', root.parent / 'flat')
    made.write_image(root.parent / 'one' / 'cat' / '0.png')
    with pytest.raises(UserError, match=r"has one class, 'cat': at least two are required"):
        read('image-folder', root.parent / 'one', needs_val=False)
