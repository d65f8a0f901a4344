"""Label maps of a user: which folders belong together, and which class each value or color is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inline.datasets.custom import CustomData
from inline.datasets.image_pairs import ImagePairs
from inline.datasets.loading import LoadLabelMap
from inline.utils.errors import BadDataError, UserError
from tests.datasets.custom import made
from tests.datasets.custom.reading import read

LABELS = made.LABELS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / 'data'


def load(data: CustomData, split: str = 'train') -> np.ndarray:
    """Return the first label map of a split as the model gets it."""
    settings = dict(data.dataset[split])
    assert settings.pop('type') == 'inline.ImagePairs'
    sample = ImagePairs(**settings)[0]
    return LoadLabelMap(num_classes=len(data.classes))({**sample, 'ori_shape': LABELS.shape})['gt_seg_map']


@pytest.mark.parametrize(
    ('images', 'labels', 'name'),
    [
        ('images/{}', 'labels/{}', '{}.png'),
        ('img/{}', 'annotations/{}', '{}.png'),
        ('{}/images', '{}/masks', '{}_mask.png'),
        ('{}', '{}annot', '{}.png'),
        ('{}', '{}_labels', '{}_L.png'),
        ('leftImg8bit/{}/city', 'gtFine/{}/city', '{}_gtFine_labelIds.png'),
        ('{}', '{}', '{}_mask.png'),
        ('images/{}ing', 'annotations/{}ing', '{}.png'),
    ],
)
def test_pairs_of_folders(images: str, labels: str, name: str, root: Path) -> None:
    made.label_maps(root, images, labels, label_name=name)
    for folder in (images, labels):
        # ADE20K calls them training and validation.
        if folder.endswith('ing') and (root / folder.format('val')).is_dir():
            (root / folder.format('val')).rename(root / folder.format('val').replace('valing', 'validation'))
    data = read('label-maps', root)
    assert data.images == made.COUNTS
    assert data.classes == ('class 0', 'class 1', 'class 2')
    assert np.array_equal(load(data), LABELS)
    lines = Path(data.dataset['val']['ann_file']).read_text().splitlines()
    assert len(lines) == 2
    for image, label_map in (line.split('\t') for line in lines):
        assert Path(image).stem == Path(label_map).stem.removesuffix(name[2:-4])


def test_flat_folders_are_divided_by_lists_or_by_fraction(root: Path) -> None:
    made.label_maps(root, 'JPEGImages', 'SegmentationClass')
    made.write_text(root / 'Annotations' / 'train_0.xml', made.voc_xml('train_0'))
    data = read('label-maps', root, val_split=0.5)
    assert data.images == {'train': 3, 'val': 3}
    # As in VOC, images without a label map are not listed.
    made.write_image(root / 'JPEGImages' / 'other.jpg')
    for split in made.COUNTS:
        made.write_text(root / 'ImageSets' / 'Segmentation' / f'{split}.txt', '\n'.join(made.names(split)))
    assert read('label-maps', root).images == made.COUNTS


def test_list_of_validation_images_and_names_of_fastai(root: Path) -> None:
    made.label_maps(root, 'images', 'labels', label_name='{}_P.png')
    made.write_text(root / 'codes.txt', 'sky\nroad\ncar\n')
    made.write_text(root / 'valid.txt', ''.join(f'{stem}.jpg\n' for stem in made.names('val')))
    data = read('label-maps', root)
    assert data.images == made.COUNTS
    assert data.classes == ('sky', 'road', 'car')


def test_names_and_palette_of_an_indexed_png(root: Path) -> None:
    colors = [10, 20, 30, 40, 50, 60, 70, 80, 90]
    made.label_maps(root, palette=colors)
    made.write_text(root / 'classes.txt', 'sky\nroad\ncar\n')
    data = read('label-maps', root)
    assert data.classes == ('sky', 'road', 'car')
    assert data.dataset['train']['metainfo']['palette'] == [[10, 20, 30], [40, 50, 60], [70, 80, 90]]
    assert np.array_equal(load(data), LABELS)


@pytest.mark.parametrize(
    ('file', 'text'),
    [
        ('class_dict.csv', 'name,r,g,b\nsky,128,128,128\nroad,128,64,128\ncar,64,0,128\n'),
        ('label_colors.txt', '128 128 128\tsky\n128 64 128\troad\n64 0 128\t\tcar\n'),
        (
            'labelmap.txt',
            '# label:color_rgb:parts:actions\nsky:128,128,128::\nroad:128,64,128::\ncar:64,0,128::\n',
        ),
    ],
)
def test_color_coded_label_maps(file: str, text: str, root: Path) -> None:
    made.color_coded(root)
    (root / 'class_dict.csv').unlink()
    with pytest.raises(
        UserError, match=r'is color-coded, with color 64 0 128, .*: name the color of each class in'
    ):
        read('label-maps', root)
    made.write_text(root / file, text)
    data = read('label-maps', root)
    assert data.classes == ('sky', 'road', 'car')
    assert data.dataset['val']['metainfo']['palette'] == [list(color) for color in made.COLORS.values()]
    assert np.array_equal(load(data), LABELS)
    data = read('label-maps', root, ignore_labels=('road',))
    assert data.classes == ('sky', 'car')
    assert np.array_equal(load(data), np.array([0, 255, 1])[LABELS])


def test_an_indexed_png_with_the_colors_of_the_palette_file(root: Path) -> None:
    made.color_coded(root)
    # The indices are in another order than the palette file.
    colors = [channel for color in reversed(made.COLORS.values()) for channel in color]
    for path in root.rglob('*_L.png'):
        made.write_image(path, 2 - LABELS, palette=colors)
    assert np.array_equal(load(read('label-maps', root)), LABELS)


@pytest.mark.parametrize('channels', [1, 3])
def test_binary_masks_are_two_classes(channels: int, root: Path) -> None:
    mask = np.where(LABELS > 0, 255, 0).astype(np.uint8)
    made.label_maps(root, array=mask if channels == 1 else np.repeat(mask[..., None], 3, axis=-1))
    data = read('label-maps', root)
    assert data.classes == ('class 0', 'class 1')
    assert data.notes == ('custom data: the label maps are binary masks: 0 is class 0 and 255 is class 1',)
    assert np.array_equal(load(data), LABELS > 0)
    made.write_text(root / 'classes.txt', 'background\ncell\n')
    assert read('label-maps', root).classes == ('background', 'cell')


def test_several_ignored_labels_and_gaps(root: Path) -> None:
    labels = np.array([0, 7, 9], np.uint16)[LABELS]
    labels[:2], labels[2:4] = 65535, 255
    made.label_maps(root, array=labels)
    data = read('label-maps', root, ignore_labels=(65535, 0))
    assert data.classes == ('class 7', 'class 9')
    assert data.notes == ('custom data: labels 7, 9 become classes 0 to 1',)
    expected = np.array([255, 0, 1])[LABELS]
    expected[:4] = 255
    assert np.array_equal(load(data), expected)
    with pytest.raises(
        UserError, match=r'--ignore-label 3: no label map of .* has it; found 0, 7, 9, 255, 65535'
    ):
        read('label-maps', root, ignore_labels=(3,))
    with pytest.raises(UserError, match=r"--ignore-label 'void': no class has this name"):
        read('label-maps', root, ignore_labels=('void',))


def test_a_color_that_was_added_after_the_check_stops_the_run(root: Path) -> None:
    data = read('label-maps', made.color_coded(root))
    path = root / 'train_labels' / 'train_0_L.png'
    made.write_image(path, np.full((*LABELS.shape, 3), 7, np.uint8))
    with pytest.raises(BadDataError, match=r'has color 7 7 7 at x=0, y=0: must be one of color 64 0 128'):
        load(data)


def rewrite(root: Path, array: np.ndarray, split: str = '*') -> None:
    for path in (root / 'labels').glob(f'{split}/*.png'):
        made.write_image(path, array)


@pytest.mark.parametrize(
    ('array', 'names', 'message'),
    [
        (np.full_like(LABELS, 255), '', 'have no label besides ignored pixels'),
        (np.zeros_like(LABELS), '', 'have only label 0 besides'),
        (LABELS, 'sky\nroad\n', r'label 2 in .*: classes\.txt has 2 classes, so labels must be 0 to 1'),
        (
            LABELS,
            'sky\nroad\ncar\nbus\nold bike\n',
            r"have no pixels in train: bus, old bike; .*bus 'old bike'",
        ),
    ],
)
def test_classes_without_pixels_are_errors(array: np.ndarray, names: str, message: str, root: Path) -> None:
    made.label_maps(root)
    rewrite(root, array)
    if names:
        made.write_text(root / 'classes.txt', names)
    with pytest.raises(UserError, match=message):
        read('label-maps', root)


def test_incomplete_label_maps(root: Path) -> None:
    made.label_maps(root)
    first = root / 'labels' / 'train' / 'train_0.png'

    def fails(message: str, **options: Any) -> None:
        with pytest.raises(UserError, match=message):
            read('label-maps', root, **options)

    made.write_image(first, np.stack([LABELS, LABELS], axis=-1))
    fails('has 2 channels: ')
    first.write_bytes(b'not an image')
    fails('cannot be read')
    first.unlink()
    fails(r"1 images of .* have no label map in labels/train; the first is 'train_0\.jpg'")
    made.write_image(first.with_suffix('.jpg'), LABELS)
    fails('is a JPEG, which changes labels: must be a PNG')
