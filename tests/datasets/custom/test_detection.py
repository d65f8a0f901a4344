"""COCO, VOC and YOLO annotations of a user: the same boxes, whatever the format."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from inline.datasets.custom import CustomData
from inline.datasets.custom.voc import read_voc
from inline.datasets.validation.coco import check_coco
from inline.utils.errors import UserError
from tests.datasets.custom import made
from tests.datasets.custom.reading import read


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / 'data'


def load(data: CustomData, split: str) -> dict[str, Any]:
    """Return the COCO file that mmdet reads for a split, after checking it and its images."""
    settings = data.dataset[split]
    path = Path(settings['data_root'], settings['ann_file'])
    assert check_coco(path, data.classes) == {}
    tables = json.loads(path.read_text())
    for image in tables['images']:
        assert Path(settings['data_root'], settings['data_prefix']['img'], image['file_name']).is_file()
    return tables


def boxes(data: CustomData, split: str) -> list[tuple[str, list[int]]]:
    """Return class and box of every object, rounded, in the order of the images."""
    tables = load(data, split)
    names = {category['id']: category['name'] for category in tables['categories']}
    return [
        (names[entry['category_id']], [round(x) for x in entry['bbox']]) for entry in tables['annotations']
    ]


EXPECTED = [(name, list(box)) for name, box in made.BOXES.items()]
WRITERS = {
    'coco': made.coco,
    'roboflow': made.roboflow,
    'voc': made.voc,
    'yolo': made.yolo,
    'yolo polygons': lambda root: made.yolo(root, polygons=True),
    'yolo without yaml': lambda root: _without_description(made.yolo(root)),
}


def _without_description(path: Path) -> Path:
    path.unlink()
    made.write_text(path.parent / 'classes.txt', '\n'.join(made.CLASSES))
    return path.parent


@pytest.mark.parametrize('name', WRITERS)
def test_every_format_gives_the_same_boxes(name: str, root: Path) -> None:
    data = read('coco-format', WRITERS[name](root))
    assert data.classes == made.CLASSES
    assert data.images == made.COUNTS
    assert data.objects == {'train': 8, 'val': 4}
    assert boxes(data, 'train') == 4 * EXPECTED
    assert boxes(data, 'val') == 2 * EXPECTED
    assert data.has_masks == (name in ('coco', 'roboflow', 'yolo polygons'))


@pytest.mark.parametrize(
    ('file', 'folder'),
    [
        ('{}.json', '{}'),
        ('annotations/instances_{}2017.json', '{}2017'),
        ('annotations/{}.json', 'images/{}'),
        ('{}/_annotations.coco.json', '{}'),
        ('{}.json', 'images'),
        ('{}/labels.json', '{}/data'),
    ],
)
def test_common_coco_layouts_are_found(file: str, folder: str, root: Path) -> None:
    data = read('coco-format', made.coco(root, file, folder))
    for split in ('train', 'val'):
        # A complete file is used where it is.
        assert data.dataset[split]['ann_file'] == file.format(split)
        assert data.dataset[split]['data_prefix'] == {'img': folder.format(split)}


def test_areas_of_coco_are_derived_and_ids_start_at_one(root: Path) -> None:
    data = read('coco-format', made.roboflow(root))
    annotations = load(data, 'val')['annotations']
    assert [entry['id'] for entry in annotations] == [1, 2, 3, 4]
    assert [entry['area'] for entry in annotations[:2]] == [20 * 16, 24 * 20]
    assert {entry['iscrowd'] for entry in annotations} == {0}
    assert 'keypoints' not in annotations[0]
    assert data.notes == ('custom data: categories without annotations are not used: pets',)


@pytest.mark.parametrize('with_area', [True, False])
def test_checkpoints_get_the_category_ids_of_the_file(with_area: bool, root: Path) -> None:
    """Of the user's file, also if a converted file with other ids is used."""
    made.coco(root)
    for path in (root / 'annotations').iterdir():
        tables = json.loads(path.read_text())
        for category in tables['categories']:
            category['id'] *= 10
        for annotation in tables['annotations']:
            annotation['category_id'] *= 10
            if not with_area:
                del annotation['area']
        path.write_text(json.dumps(tables))
    data = read('coco-format', root)
    assert data.dataset['train']['metainfo'] == {'classes': ['cat', 'dog'], 'category_ids': [10, 20]}


def test_class_names_with_control_characters_are_refused(root: Path) -> None:
    made.coco(root)
    for path in (root / 'annotations').iterdir():
        path.write_text(path.read_text().replace('"cat"', '"a\\u001b[2J"'))
    with pytest.raises(UserError, match=r"class name 'a\\x1b\[2J' has control characters"):
        read('coco-format', root)


def test_categories_of_val_in_another_order(root: Path) -> None:
    made.coco(root)
    path = root / 'annotations' / 'instances_val.json'
    tables = json.loads(path.read_text())
    tables['categories'].reverse()
    path.write_text(json.dumps(tables))
    data = read('coco-format', root)
    assert data.classes == made.CLASSES
    assert boxes(data, 'val') == 2 * EXPECTED


def test_one_coco_file_is_divided(root: Path) -> None:
    made.coco(root, folder='images')
    (root / 'annotations' / 'instances_val.json').unlink()
    (root / 'annotations' / 'instances_train.json').rename(root / 'result.json')
    data = read('coco-format', root, val_split=0.25)
    assert data.images == {'train': 3, 'val': 1}
    files = [image['file_name'] for split in ('train', 'val') for image in load(data, split)['images']]
    assert sorted(files) == [f'{stem}.jpg' for stem in made.names('train')]


def test_boxes_of_two_corners_are_named(root: Path) -> None:
    def change(tables: dict[str, Any]) -> None:
        for entry in tables['annotations']:
            x, y, w, h = made.BOXES['dog']
            entry['bbox'] = [x, y, x + w, y + h]

    made.coco(root, change=change)
    with pytest.raises(UserError, match=r'8 of 8 boxes exceed .* they look like \[x1, y1, x2, y2\]'):
        read('coco-format', root)


def test_test_split_without_annotations_is_not_used(root: Path) -> None:
    made.coco(root)
    tables = made.coco_tables(['test_0'])
    made.write_image(root / 'images' / 'test' / 'test_0.jpg')
    path = root / 'annotations' / 'instances_test.json'
    path.write_text(json.dumps({**tables, 'annotations': []}))
    assert list(read('coco-format', root).images) == ['train', 'val']
    path.write_text(json.dumps(tables))
    assert read('coco-format', root).images == {'train': 4, 'val': 2, 'test': 1}


def test_voc_files_next_to_the_images_and_by_split(root: Path) -> None:
    for split, folder in (('train', 'train'), ('val', 'valid')):
        for stem in made.names(split):
            made.write_image(root / folder / f'{stem}.jpg')
            made.write_text(root / folder / f'{stem}.xml', made.voc_xml(stem))
    data = read('coco-format', root)
    assert data.images == made.COUNTS
    assert boxes(data, 'val') == 2 * EXPECTED


def test_flat_voc_is_divided_and_sizes_are_read_from_images(root: Path) -> None:
    made.flat_voc(root)
    made.write_image(root / 'images' / 'unlabelled.png')
    data = read('coco-format', root, val_split=0.3)
    assert data.images == {'train': 4, 'val': 2}
    assert boxes(data, 'val') == 2 * EXPECTED
    assert {(image['width'], image['height']) for image in load(data, 'train')['images']} == {(64, 48)}
    assert data.notes == ('custom data: 1 images without an XML file are not used',)


def test_difficult_objects_of_voc_are_ignored(root: Path) -> None:
    made.voc(root)
    path = root / 'Annotations' / 'val_0.xml'
    path.write_text(path.read_text().replace('<difficult>0', '<difficult>1', 1))
    data = read('coco-format', root)
    tables = json.loads(Path(data.dataset['val']['ann_file']).read_text())
    assert [entry['iscrowd'] for entry in tables['annotations']] == [1, 0, 0, 0]


def test_an_image_with_an_orientation_is_measured_as_displayed(root: Path) -> None:
    made.yolo(root)
    path = root / 'images' / 'val' / 'val_0.jpg'
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(path) as image:
        image.save(path, exif=exif)
    image = load(read('coco-format', root), 'val')['images'][0]
    assert (image['width'], image['height']) == (48, 64)


@pytest.mark.parametrize(
    'description',
    [
        {'names': {0: 'cat', 1: 'dog'}, 'nc': 2},
        {'path': '/home/author/datasets/pets'},
        {'train': '../images/train', 'val': '../images/val'},
        {'train': ['images/train'], 'val': 'val.txt', 'test': 'images/nowhere'},
    ],
)
def test_forms_of_a_data_yaml(description: dict[str, Any], root: Path) -> None:
    path = made.yolo(root, **description)
    made.write_text(root / 'val.txt', ''.join(f'./images/val/{stem}.jpg\n' for stem in made.names('val')))
    for given in (path, root):
        data = read('coco-format', given)
        assert data.images == made.COUNTS
        assert boxes(data, 'val') == 2 * EXPECTED


def test_yolo_images_without_labels_are_background(root: Path) -> None:
    made.yolo(root)
    (root / 'labels' / 'train' / 'train_0.txt').unlink()
    (root / 'labels' / 'train' / 'train_1.txt').write_text('')
    data = read('coco-format', root)
    assert data.images['train'] == 4
    assert data.objects['train'] == 4


def test_roboflow_yolo_has_split_folders(root: Path) -> None:
    made.yolo(root)
    for split in made.COUNTS:
        (root / split).mkdir()
        for name in ('images', 'labels'):
            (root / name / split).rename(root / split / name)
    content = {'train': '../train/images', 'val': '../val/images', 'nc': 2, 'names': list(made.CLASSES)}
    (root / 'data.yaml').write_text(yaml.safe_dump(content))
    assert boxes(read('coco-format', root), 'val') == 2 * EXPECTED
    (root / 'data.yaml').unlink()
    data = read('coco-format', root)
    assert data.classes == ('class 0', 'class 1')
    assert data.images == made.COUNTS


@pytest.mark.parametrize(
    ('description', 'message'),
    [
        ({'names': None}, r'has no names: must be the list of class names'),
        ({'names': {1: 'cat', 2: 'dog'}}, r'has names for \[1, 2\]: must be 0, 1, 2'),
        ({'nc': 3}, 'has nc 3, but 2 names'),
        ({'val': 'images/missing'}, r"val 'images/missing' of .* does not exist"),
        ({'train': 'labels'}, r"train 'labels' of .* has no images"),
    ],
)
def test_invalid_data_yaml(description: dict[str, Any], message: str, root: Path) -> None:
    path = made.yolo(root, **description)
    with pytest.raises(UserError, match=message):
        read('coco-format', path)


def test_incomplete_coco_files(root: Path) -> None:
    for text, message in (
        ('{"images": [', r"train\.json' is not valid JSON"),
        ('{"images": []}', r"has no list 'categories': not a COCO annotation file"),
        (
            json.dumps(made.coco_tables(['a'])),
            r"image 'a\.jpg' of train\.json is in none of the folders train",
        ),
        (
            json.dumps({**made.coco_tables(['a']), 'annotations': []}),
            'has no annotation of any of its categories',
        ),
    ):
        for split in ('train', 'val'):
            made.write_text(root / f'{split}.json', text)
        with pytest.raises(UserError, match=message):
            read('coco-format', root)


def test_a_list_in_another_encoding_is_one_line(tmp_path: Path) -> None:
    made.voc(tmp_path)
    (listed,) = tmp_path.rglob('train.txt')
    listed.write_bytes('café\n'.encode('latin-1'))
    with pytest.raises(UserError, match=r"train\.txt' cannot be read: 'utf-8' codec"):
        read_voc(tmp_path, [])
