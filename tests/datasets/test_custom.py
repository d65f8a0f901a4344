"""Reading classes, counts and paths from a user's dataset, and errors about incomplete ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inline.datasets.custom import READERS, CustomData
from inline.datasets.validation.checks import CheckCache
from inline.utils.errors import UserError


def read(data_format: str, root: Path) -> CustomData:
    return READERS[data_format](root, CheckCache(None))


def write_image(path: Path, array: np.ndarray | None = None, palette: list[int] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.zeros((8, 10, 3), np.uint8) if array is None else array)
    if palette is not None:
        image.putpalette(palette)
    image.save(path)


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    for split, count in (('train', 3), ('val', 1)):
        for name in ('zebra', 'ant'):
            for i in range(count):
                write_image(tmp_path / split / name / f'{i}.png')
    return tmp_path


def test_classes_are_the_sorted_folders(image_folder: Path) -> None:
    (image_folder / 'train' / 'ant' / 'notes.txt').write_text('not an image')
    data = read('image-folder', image_folder)
    assert data.classes == ('ant', 'zebra')
    assert data.counts == {'train': 6, 'val': 2}


def test_invalid_image_folders(image_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'.*nowhere' does not exist: give yours with --data-root"):
        read('image-folder', tmp_path / 'nowhere')
    write_image(image_folder / 'val' / 'bee' / '0.png')
    with pytest.raises(UserError, match=r"class 'bee' is in .*val' but not in .*train'"):
        read('image-folder', image_folder)
    with pytest.raises(UserError, match="has no folder 'train'"):
        read('image-folder', image_folder / 'train')
    for split in ('train', 'val'):
        write_image(tmp_path / 'flat' / split / '0.png')
    with pytest.raises(UserError, match='has no images in class folders'):
        read('image-folder', tmp_path / 'flat')


def coco(categories: list[tuple[int, str]], used: list[int], masks: bool = False) -> dict[str, Any]:
    annotation = {'bbox': [1, 1, 4, 4], 'area': 16, 'iscrowd': 0, 'image_id': 1}
    if masks:
        annotation['segmentation'] = [[1, 1, 5, 1, 5, 5]]
    return {
        'images': [{'id': 1, 'file_name': 'a.png', 'width': 10, 'height': 8}],
        'categories': [{'id': number, 'name': name} for number, name in categories],
        'annotations': [{**annotation, 'id': i, 'category_id': number} for i, number in enumerate(used)],
    }


@pytest.mark.parametrize(
    ('file', 'folder'),
    [
        ('{}.json', '{}'),
        ('annotations/instances_{}2017.json', '{}2017'),
        ('annotations/{}.json', 'images/{}'),
        ('{}/_annotations.coco.json', '{}'),
        ('{}.json', 'images'),
    ],
)
def test_common_coco_layouts_are_found(file: str, folder: str, tmp_path: Path) -> None:
    content = coco([(0, 'things'), (7, 'red'), (3, 'white')], used=[3, 7, 3])
    for split in ('train', 'val'):
        path = tmp_path / file.format(split)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
        write_image(tmp_path / folder.format(split) / 'a.png')
    data = read('coco-format', tmp_path)
    for split in ('train', 'val'):
        assert data.dataset[split]['ann_file'] == file.format(split)
        assert data.dataset[split]['data_prefix'] == {'img': folder.format(split)}
    # In the order of the file, which mmdet uses for labels, without unused categories.
    assert data.classes == ('red', 'white')
    assert data.dataset['train']['metainfo'] == {'classes': ['red', 'white'], 'category_ids': [7, 3]}
    assert not data.has_masks


def test_invalid_coco_format(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'has no annotations of train: searched for train\.json'):
        read('coco-format', tmp_path)
    for split in ('train', 'val'):
        (tmp_path / f'{split}.json').write_text('{"images": [')
    with pytest.raises(UserError, match=r"train\.json' is not valid JSON"):
        read('coco-format', tmp_path)
    for split in ('train', 'val'):
        (tmp_path / f'{split}.json').write_text('{"images": []}')
    with pytest.raises(UserError, match="has no list 'annotations': not a COCO annotation file"):
        read('coco-format', tmp_path)
    for split in ('train', 'val'):
        (tmp_path / f'{split}.json').write_text(json.dumps(coco([(1, 'cell')], used=[1], masks=True)))
    with pytest.raises(UserError, match=r"image 'a\.png' of train\.json is in none of the folders train"):
        read('coco-format', tmp_path)
    write_image(tmp_path / 'images' / 'a.png')
    assert read('coco-format', tmp_path).has_masks


@pytest.fixture
def label_maps(tmp_path: Path) -> Path:
    labels = np.array([[0, 1], [2, 255]], np.uint8)
    for split in ('train', 'val'):
        write_image(tmp_path / 'images' / split / 'a.jpg')
        write_image(tmp_path / 'labels' / split / 'a.png', labels)
    return tmp_path


def test_classes_without_names_are_numbered(label_maps: Path) -> None:
    data = read('label-maps', label_maps)
    assert data.classes == ('class 0', 'class 1', 'class 2')
    assert data.counts == {'train': 1, 'val': 1}
    settings = data.dataset['val']
    assert (settings['img_suffix'], settings['seg_map_suffix']) == ('.jpg', '.png')
    assert len({tuple(color) for color in settings['metainfo']['palette']}) == 3


def test_class_names_and_palette_are_read(label_maps: Path) -> None:
    (label_maps / 'classes.txt').write_text('sky\nroad\ncar\ntree\n')
    colors = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120]
    labels = np.array([[0, 1], [2, 3]], np.uint8)
    write_image(label_maps / 'labels' / 'train' / 'a.png', labels, palette=colors)
    data = read('label-maps', label_maps)
    assert data.classes == ('sky', 'road', 'car', 'tree')
    palette = data.dataset['train']['metainfo']['palette']
    assert palette == [[10, 20, 30], [40, 50, 60], [70, 80, 90], [100, 110, 120]]


def test_label_maps_without_any_class(label_maps: Path) -> None:
    for path in (label_maps / 'labels').rglob('*.png'):
        write_image(path, np.full((4, 4), 255, np.uint8))
    with pytest.raises(UserError, match=r'all pixels of all label maps are 255: the first is'):
        read('label-maps', label_maps)


def test_invalid_label_maps(label_maps: Path) -> None:
    (label_maps / 'classes.txt').write_text('sky\nroad\n')
    with pytest.raises(
        UserError, match=r'label 2 in .*: classes\.txt has 2 classes, so labels must be 0 to 1'
    ):
        read('label-maps', label_maps)
    write_image(label_maps / 'labels' / 'train' / 'a.png', np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(UserError, match='has 3 channels: must have one'):
        read('label-maps', label_maps)
    (label_maps / 'labels' / 'train' / 'a.png').write_bytes(b'not an image')
    with pytest.raises(UserError, match='cannot be read'):
        read('label-maps', label_maps)
    write_image(label_maps / 'images' / 'train' / 'b.jpg')
    with pytest.raises(
        UserError, match=r"1 images of .* have no label map in labels/train; the first is 'b\.jpg'"
    ):
        read('label-maps', label_maps)
    write_image(label_maps / 'images' / 'train' / 'c.png')
    with pytest.raises(UserError, match=r'have 3 \.jpg and 1 \.png files: all must have the same suffix'):
        read('label-maps', label_maps)


def test_class_names_with_control_characters_are_refused() -> None:
    with pytest.raises(UserError, match=r"class name 'a\\x1b\[2J' has control characters"):
        CustomData(('cat', 'a\x1b[2J'), {}, {})
