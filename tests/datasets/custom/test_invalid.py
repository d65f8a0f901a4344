"""Bad samples of every format have the outcome that ``docs/data_validation.md`` lists."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inline.datasets.custom import CustomData
from inline.datasets.loading import LoadImage
from inline.datasets.validation.coco import check_coco, format_counts
from inline.utils.errors import UnreadableError, UserError
from tests.datasets.custom import made
from tests.datasets.custom.reading import read
from tests.datasets.invalid_data import Case

Make = Callable[[Path], Path]


def voc(text: str | None, file: str = 'Annotations/train_0.xml') -> Make:
    """VOC data with another text in one file; None deletes it."""

    def make(root: Path) -> Path:
        made.voc(root)
        if text is None:
            (root / file).unlink()
        else:
            (root / file).write_text(text)
        return root

    return make


def voc_object(text: str) -> Make:
    return voc(made.voc_xml('train_0', f'<object>{text}</object>'))


def box(xmin: str, xmax: str = '20') -> str:
    corners = f'<xmin>{xmin}</xmin><ymin>5</ymin><xmax>{xmax}</xmax><ymax>20</ymax>'
    return f'<name>cat</name><bndbox>{corners}</bndbox>'


def yolo(text: str | bytes | None, file: str = 'labels/train/train_0.txt') -> Make:
    def make(root: Path) -> Path:
        description = made.yolo(root)
        if text is None:
            (root / file).unlink()
        else:
            (root / file).write_bytes(text if isinstance(text, bytes) else text.encode())
        return description

    return make


def without_image(make: Make, image: str) -> Make:
    def removed(root: Path) -> Path:
        given = make(root)
        (root / image).unlink()
        return given

    return removed


def csv_file(text: str) -> Make:
    def make(root: Path) -> Path:
        made.csv_files(root)
        (root / 'train.csv').write_text(text)
        return root

    return make


def coco(**values: Any) -> Make:
    """COCO data whose annotations have other values; None removes a key."""

    def change(tables: dict[str, Any]) -> None:
        for entry in tables['annotations']:
            entry.update(values)
            for key in [key for key, value in entry.items() if value is None]:
                del entry[key]

    return lambda root: made.coco(root, change=change)


def maps(array: np.ndarray, make: Make = made.label_maps, name: str = 'labels/train/train_0.png') -> Make:
    def changed(root: Path) -> Path:
        given = make(root)
        made.write_image(root / name, array)
        return given

    return changed


def with_file(make: Make, name: str, text: str) -> Make:
    def written(root: Path) -> Path:
        given = make(root)
        (root / name).write_text(text)
        return given

    return written


def extra_class(root: Path) -> Path:
    made.class_folders(root)
    made.write_image(root / 'val' / 'bee' / '0.png')
    return root


def replaced(suffix: str, dtype: type = np.uint8, scale: float = 1) -> Make:
    """Label maps of which one is stored in another format."""

    def make(root: Path) -> Path:
        made.label_maps(root)
        path = root / 'labels' / 'train' / 'train_0.png'
        path.unlink()
        made.write_image(path.with_suffix(f'.{suffix}'), (made.LABELS * scale).astype(dtype))
        return root

    return make


CLASSES, BOXES, MAPS = 'image-folder', 'coco-format', 'label-maps'
COLOR_MAP = 'train_labels/train_0_L.png'
CASES: dict[str, tuple[str, Case]] = {
    name: (task, Case(outcome, message, make))
    for name, task, outcome, message, make in (
        (
            'a class folder of val that train does not have',
            *(CLASSES, 'rejected', "class 'bee' is in val but not in train", extra_class),
        ),
        ('an empty CSV file', CLASSES, 'rejected', "train.csv' is empty", csv_file('')),
        (
            'a CSV file with other columns',
            *(CLASSES, 'rejected', 'has the columns a, b: must have path and label', csv_file('a,b\n1,2\n')),
        ),
        (
            'a CSV row without a label',
            *(CLASSES, 'rejected', "row 2: 'pictures/train_0.png,' must have a path and a label"),
            csv_file('path,label\npictures/train_0.png,\n'),
        ),
        (
            'a CSV file that lists an image twice',
            *(
                CLASSES,
                'rejected',
                "'a.png' is listed more than once",
                csv_file('path,label\na.png,x\na.png,y\n'),
            ),
        ),
        (
            'a CSV file whose images do not exist',
            *(
                CLASSES,
                'rejected',
                'none of its images exists',
                csv_file('path,label\na.png,cat\nb.png,dog\n'),
            ),
        ),
        (
            'a CSV row whose image does not exist',
            *(CLASSES, 'skipped', 'No such file or directory'),
            without_image(made.csv_files, 'pictures/train_0.png'),
        ),
        (
            'COCO boxes of two corners instead of a size',
            *(BOXES, 'rejected', 'they look like [x1, y1, x2, y2], but COCO boxes are [x, y, width, height]'),
            coco(bbox=[30, 20, 54, 40]),
        ),
        (
            'your own COCO annotations without an area',
            *(BOXES, 'loaded', 'with the area of the mask or box', coco(area=None)),
        ),
        (
            'your own COCO annotations with id 0',
            *(BOXES, 'loaded', 'with other ids: pycocotools counts matches of id 0 as missed'),
            lambda root: made.coco(root, change=lambda tables: tables['annotations'][0].update(id=0)),
        ),
        (
            'a broken XML file',
            BOXES,
            'rejected',
            "train_0.xml' is not valid XML",
            voc('<annotation><object>'),
        ),
        (
            'an XML file of another format',
            *(BOXES, 'rejected', 'is not a VOC annotation: the first element is <note>', voc('<note/>')),
        ),
        (
            'an XML object without a name',
            *(
                BOXES,
                'rejected',
                'object 1 has no name',
                voc_object(box('5').removeprefix('<name>cat</name>')),
            ),
        ),
        (
            'an XML object without a box',
            *(BOXES, 'rejected', 'object 1 has xmin None: must be a number', voc_object('<name>cat</name>')),
        ),
        (
            'an XML box of words',
            *(BOXES, 'rejected', "object 1 has xmin 'left': must be a number", voc_object(box('left'))),
        ),
        (
            'an XML box with NaN or infinity',
            *(BOXES, 'rejected', 'must be finite numbers', voc_object(box('nan'))),
        ),
        (
            'an XML box of negative size',
            *(BOXES, 'dropped', 'dropped boxes of negative size: 1', voc_object(box('30'))),
        ),
        (
            'a difficult object of VOC',
            *(BOXES, 'changed', 'crowd regions ignored by loss and metric: 1'),
            voc_object(f'{box("5")}<difficult>1</difficult>'),
        ),
        (
            'an image that ImageSets lists without an XML file',
            *(BOXES, 'rejected', "lists 'train_0', but train_0.xml does not exist", voc(None)),
        ),
        (
            'an XML file whose image does not exist',
            *(
                BOXES,
                'skipped',
                'No such file or directory',
                without_image(made.voc, 'JPEGImages/train_0.jpg'),
            ),
        ),
        (
            'an XML file without a size whose image does not exist',
            *(BOXES, 'rejected', 'has no size, and its image'),
            without_image(voc(made.voc_xml('train_0', size=False)), 'JPEGImages/train_0.jpg'),
        ),
        (
            'a YOLO line with a wrong number of fields',
            *(BOXES, 'rejected', 'line 2: has 6 fields: must be a class and 4 numbers'),
            yolo('0 0.5 0.5 0.1 0.1\n0 0.5 0.5 0.1 0.1 0.9\n'),
        ),
        (
            'a YOLO line of words',
            *(
                BOXES,
                'rejected',
                "line 1: 'cat 0.5 0.5 0.1 0.1' must be numbers",
                yolo('cat 0.5 0.5 0.1 0.1\n'),
            ),
        ),
        (
            'a YOLO class that is not in `names`',
            *(BOXES, 'rejected', 'line 1: class 2 must be 0 to 1', yolo('2 0.5 0.5 0.1 0.1\n')),
        ),
        (
            'a YOLO coordinate above 1',
            *(BOXES, 'rejected', 'line 1: coordinate 1.5 must be from 0 to 1', yolo('0 1.5 0.5 0.1 0.1\n')),
        ),
        (
            'a YOLO coordinate that is NaN',
            *(BOXES, 'rejected', 'coordinate nan must be from 0 to 1', yolo('0 nan 0.5 0.1 0.1\n')),
        ),
        ('a YOLO file that is not text', BOXES, 'rejected', 'cannot be read', yolo(b'\xff\xfe\x00a\xd8')),
        ('a YOLO image without a text file', BOXES, 'loaded', 'as background', yolo(None)),
        (
            'a YOLO image that is not an image',
            BOXES,
            'skipped',
            'not an image',
            yolo('x', 'images/train/train_0.jpg'),
        ),
        (
            'a `data.yaml` that is not YAML',
            BOXES,
            'rejected',
            'is not valid YAML',
            yolo('names: [', 'data.yaml'),
        ),
        (
            'your own label map whose size differs from its image',
            *(MAPS, 'rejected', 'is 64x40 pixels, but its image is 64x48', maps(made.LABELS[:40])),
        ),
        (
            'your own label map of fractional numbers',
            *(
                MAPS,
                'rejected',
                'has label 0.5: must be an integer from 0',
                replaced('tiff', np.float32, 0.5),
            ),
        ),
        (
            'your own label map as a JPEG',
            MAPS,
            'rejected',
            'is a JPEG, which changes labels',
            replaced('jpg'),
        ),
        (
            'your own label map that cannot be read',
            *(
                MAPS,
                'rejected',
                'cannot be read',
                with_file(made.label_maps, 'labels/train/train_1.png', 'x'),
            ),
        ),
        (
            'colors without a palette file',
            *(MAPS, 'rejected', 'is color-coded, with color'),
            without_image(made.color_coded, 'class_dict.csv'),
        ),
        (
            'a color that is not in the palette file',
            *(MAPS, 'rejected', 'has color 7 7 7, which is not in'),
            maps(np.full((*made.LABELS.shape, 3), 7, np.uint8), made.color_coded, COLOR_MAP),
        ),
        (
            'a palette file with an invalid line',
            *(MAPS, 'rejected', "'road' must be a name and three numbers from 0 to 255"),
            with_file(made.color_coded, 'class_dict.csv', 'sky,1,2,3\nroad\n'),
        ),
        (
            'a named class without a pixel',
            *(MAPS, 'rejected', '1 of 4 classes of'),
            with_file(made.label_maps, 'classes.txt', 'sky\nroad\ncar\nbus\n'),
        ),
        (
            'label maps of a single class',
            *(MAPS, 'rejected', 'at least two classes are required'),
            lambda root: made.label_maps(root, array=np.zeros_like(made.LABELS)),
        ),
        ('binary masks of 0 and 255', MAPS, 'loaded', 'as classes 0 and 1', made.binary_masks),
    )
}


ROWS = {name: case for name, (_, case) in CASES.items()}


def damaged(data: CustomData, root: Path) -> Path:
    """Return the first training image, which the cases above damage."""
    settings = data.dataset['train']
    if 'metainfo' in settings:
        tables = json.loads(Path(settings['ann_file']).read_text())
        return Path(settings['data_root'], settings['data_prefix']['img'], tables['images'][0]['file_name'])
    return root / Path(settings['ann_file']).read_text().split(' ')[0]


@pytest.mark.parametrize('name', CASES)
def test_bad_samples_have_the_documented_outcome(name: str, tmp_path: Path) -> None:
    task, case = CASES[name]
    root = tmp_path / 'data'
    given = case.make(root)
    if case.outcome == 'rejected':
        with pytest.raises(UserError) as caught:
            read(task, given)
        assert str(root) in str(caught.value)
        assert case.message in str(caught.value)
        assert '\n' not in str(caught.value)
        return
    data = read(task, given)
    if case.outcome == 'skipped':
        with pytest.raises(UnreadableError) as unreadable:
            LoadImage()({'img_path': str(damaged(data, root))})
        assert case.message in str(unreadable.value)
        assert data.images == made.COUNTS
    elif task == BOXES:
        settings = data.dataset['train']
        path = Path(settings['data_root'], settings['ann_file'])
        counts = check_coco(path, data.classes)
        if case.outcome == 'loaded':
            assert set(counts) <= {'images without objects'}
        else:
            assert case.message in format_counts(path, counts)
    else:
        assert data.images == made.COUNTS
