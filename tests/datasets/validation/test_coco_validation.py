"""Invalid COCO files raise an error with file and id; what mmdet drops or changes is counted."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pycocotools import mask as coco_mask

from inline.datasets.validation.coco import check_coco, decode_rle_counts, format_counts
from inline.utils.errors import UserError
from tests.datasets.invalid_data import RANDOM, Case, picture

CLASSES = ('cat', 'dog')
Tables = dict[str, Any]


def valid() -> Tables:
    square = {'bbox': [2, 3, 10, 8], 'area': 80, 'iscrowd': 0, 'segmentation': [[2, 3, 12, 3, 12, 11, 2, 11]]}
    return {
        'images': [{'id': i, 'file_name': f'{i}.png', 'width': 40, 'height': 24} for i in (7, 8)],
        'categories': [{'id': 3, 'name': 'cat'}, {'id': 5, 'name': 'dog'}],
        'annotations': [
            {**copy.deepcopy(square), 'id': i, 'image_id': 7 + i % 2, 'category_id': category}
            for i, category in ((20, 3), (21, 5), (22, 5))
        ],
    }


def change(table: str, **values: Any) -> Callable[[], Tables]:
    """Return a factory of files whose last entry of a table has other values; None removes a key."""

    def make() -> Tables:
        tables = valid()
        entry = tables[table][-1]
        entry.update(values)
        for key in [key for key, value in entry.items() if value is None]:
            del entry[key]
        return tables

    return make


def without(table: str) -> Callable[[], Tables]:
    return lambda: {**valid(), table: []}


def rle(size: list[int], counts: Any) -> Callable[[], Tables]:
    return change('annotations', segmentation={'size': size, 'counts': counts})


def polygon(points: Any) -> Callable[[], Tables]:
    return change('annotations', segmentation=[points])


REJECTED = {
    name: Case('rejected', message, make)
    for name, message, make in (
        ('an empty annotation file', 'is not valid JSON', lambda: ''),
        ('an annotation file that is not JSON', 'is not valid JSON', lambda: '{"images": [}'),
        ('a truncated annotation file', 'is not valid JSON', lambda: json.dumps(valid())[:-30]),
        (
            'an annotation file of another format',
            "has no list 'images': not a COCO annotation file",
            lambda: [1, 2],
        ),
        (
            'a COCO file without categories',
            "has no list 'categories': not a COCO annotation file",
            lambda: {key: entries for key, entries in valid().items() if key != 'categories'},
        ),
        ('a COCO file without images', 'lists no images', without('images')),
        (
            'a COCO file without annotations',
            'has no usable object of the classes cat, dog',
            without('annotations'),
        ),
        (
            'an image without a file name',
            "images[1] (id 8) has no 'file_name'",
            change('images', file_name=None),
        ),
        (
            'an absolute file name',
            "images[1] has file_name '/dev/zero', which is absolute: must be a path inside the image folder",
            change('images', file_name='/dev/zero'),
        ),
        (
            'a file name outside the image folder',
            "images[1] has file_name '../8.png', which contains '..': must be a path inside",
            change('images', file_name='../8.png'),
        ),
        (
            'a URL as a file name',
            "images[1] has file_name 'http://a.org/8.png', which is a URL: must be a path inside",
            change('images', file_name='http://a.org/8.png'),
        ),
        (
            'a NUL in a file name',
            "images[1] has file_name '8\\x00.png', which contains a NUL character: must be a path inside",
            change('images', file_name='8\0.png'),
        ),
        ('an image entry without a size', "images[1] (id 8) has no 'height'", change('images', height=None)),
        ('an image of size zero', 'image 8 has size 0x24: must be positive', change('images', width=0)),
        (
            'an annotation without a box',
            "annotations[2] (id 22) has no 'bbox'",
            change('annotations', bbox=None),
        ),
        (
            'an annotation without an area',
            "annotations[2] (id 22) has no 'area'",
            change('annotations', area=None),
        ),
        (
            'a box with NaN or infinity',
            'annotation 22 has bbox [1, 2, nan, 4]: must be four finite numbers',
            change('annotations', bbox=[1, 2, float('nan'), 4]),
        ),
        (
            'a box of three numbers',
            'annotation 22 has bbox [1, 2, 3]: must be four finite numbers',
            change('annotations', bbox=[1, 2, 3]),
        ),
        (
            'a box of strings',
            "annotation 22 has bbox ['1', '2', '3', '4']: must be four finite numbers",
            change('annotations', bbox=['1', '2', '3', '4']),
        ),
        (
            'an annotation of an unknown image',
            'annotation 22 has image_id 99, which is not listed',
            change('annotations', image_id=99),
        ),
        (
            'an annotation of an unknown category',
            'annotation 22 has category_id 4, which is not listed',
            change('annotations', category_id=4),
        ),
        (
            'a box with a number of 30 digits',
            f'annotation 22 has bbox [1, 2, {10**30}, 4]: must be four finite numbers below 2**31',
            change('annotations', bbox=[1, 2, 10**30, 4]),
        ),
        (
            'an area of 30 digits',
            f'annotation 22 has area {10**30}: must be a finite number below 2**31',
            change('annotations', area=10**30),
        ),
        (
            'an image with a width of 30 digits',
            f'image 8 has width {10**30}: must be a finite number below 2**31',
            change('images', width=10**30),
        ),
        (
            'an area above the range of floats',
            'annotation 22 has area 1',
            change('annotations', area=10**400),
        ),
        (
            'an image whose size is a string',
            "image 8 has width '40': must be a finite number",
            change('images', width='40'),
        ),
        (
            'a category whose name is a list',
            "categories[1] has name ['dog']: must be a non-empty string",
            change('categories', name=['dog']),
        ),
        ('two images with the same id', "id 7 occurs more than once in 'images'", change('images', id=7)),
        (
            'two annotations with the same id',
            "id 20 occurs more than once in 'annotations'",
            change('annotations', id=20),
        ),
        (
            'two categories with the same id',
            "id 3 occurs more than once in 'categories'",
            change('categories', id=3),
        ),
        (
            'an id that is not an integer',
            "images[1] has id '8': must be an integer",
            change('images', id='8'),
        ),
        (
            'a class without a category',
            "has no category 'dog', which is a class of the config",
            change('categories', name='wolf'),
        ),
        (
            'categories in a different order than the classes',
            "category 'dog' has index 0 in the file and 1 in the config",
            lambda: {**valid(), 'categories': valid()['categories'][::-1]},
        ),
        (
            'an annotation without a mask, if masks are trained',
            'annotation 22 has no segmentation, but the config trains masks',
            change('annotations', segmentation=None),
        ),
        (
            'an RLE mask whose size differs from its image',
            'annotation 22 has RLE size [24, 41], but its image is [24, 40]',
            rle([24, 41], [984]),
        ),
        (
            'an RLE mask that does not fill the image',
            'annotation 22 has RLE counts for 900 pixels, but its image has 960',
            rle([24, 40], [400, 500]),
        ),
        (
            'an RLE mask with a negative run',
            'annotation 22 has RLE counts [-40, 1000]: must be integers >= 0',
            rle([24, 40], [-40, 1000]),
        ),
        (
            'an RLE mask of strings',
            "annotation 22 has RLE counts ['400', '560']: must be integers >= 0",
            rle([24, 40], ['400', '560']),
        ),
        (
            'an RLE mask without counts',
            'annotation 22 has RLE counts None: must be integers >= 0',
            rle([24, 40], None),
        ),
        (
            'a truncated compressed RLE mask',
            "annotation 22 has RLE counts 'Pn0o': must be",
            rle([24, 40], 'Pn0o'),
        ),
        (
            'a compressed RLE mask with a negative run',
            "annotation 22 has RLE counts 'hNXo0': must be",
            rle([24, 40], 'hNXo0'),
        ),
        ('a damaged compressed RLE mask', 'annotation 22 has RLE counts', rle([24, 40], 'oops')),
        (
            'a mask that is a number',
            'annotation 22 has segmentation 5: must be polygons or RLE',
            change('annotations', segmentation=5),
        ),
        (
            'a polygon far outside its image',
            'annotation 22 has a polygon coordinate 1000000000.0 far outside its image',
            polygon([0, 0, 1e9, 0, 1e9, 1e9, 0, 1e9]),
        ),
        (
            'a polygon of strings',
            "annotation 22 has polygon ['2', '3', '12', '3', '12', '11']: must be a flat list",
            polygon(['2', '3', '12', '3', '12', '11']),
        ),
        (
            'a polygon as a list of points',
            'annotation 22 has polygon [[2, 3], [12, 3], [12, 11]]: must be a flat list of finite numbers',
            polygon([[2, 3], [12, 3], [12, 11]]),
        ),
        (
            'a polygon with NaN or infinity',
            'annotation 22 has polygon [2, 3, nan, 3, 12, 11]: must be a flat list of finite numbers',
            polygon([2, 3, float('nan'), 3, 12, 11]),
        ),
        (
            'a polygon with a number above the range of floats',
            'annotation 22 has polygon [2, 3, 1',
            polygon([2, 3, 10**400, 3, 12, 11]),
        ),
        ('a polygon that is null', 'annotation 22 has polygon None: must be a flat list', polygon(None)),
        (
            'a polygon of strings of a dropped object',
            "annotation 22 has polygon ['a']: must be a flat list of finite numbers",
            change('annotations', area=0, segmentation=[['a']]),
        ),
    )
}
COUNTED = {
    'a box outside its image': Case(
        'dropped', 'dropped boxes outside the image: 1', change('annotations', bbox=[50, 3, 10, 8])
    ),
    'a box of zero area': Case(
        'dropped',
        'dropped boxes less than one pixel wide or high: 1',
        change('annotations', bbox=[2, 3, 0, 8]),
    ),
    'a box of negative size': Case(
        'dropped', 'dropped boxes of negative size: 1', change('annotations', bbox=[12, 11, -10, -8])
    ),
    'an object of area 0': Case(
        'dropped', 'dropped objects without a positive area: 1', change('annotations', area=0)
    ),
    'an object of a category that is not a class': Case(
        'dropped',
        'dropped objects of categories that are not classes: 1',
        lambda: {
            **change('annotations', category_id=6)(),
            'categories': [*valid()['categories'], {'id': 6, 'name': 'cow'}],
        },
    ),
    'an object marked `ignore`': Case(
        'dropped', 'dropped objects marked "ignore": 1', change('annotations', ignore=1)
    ),
    'a box partly outside its image': Case(
        'changed', 'boxes clipped at the image border: 1', change('annotations', bbox=[30, 3, 20, 8])
    ),
    'a crowd region': Case(
        'changed', 'crowd regions ignored by loss and metric: 1', change('annotations', iscrowd=1)
    ),
    'an object whose only polygon has two points': Case(
        'changed',
        'objects without a valid polygon ignored by loss and metric: 1',
        change('annotations', segmentation=[[1, 1, 5, 5]]),
    ),
    'an object with one polygon of two points among others': Case(
        'changed',
        'objects that lose polygons with fewer than three points: 1',
        change('annotations', segmentation=[[1, 1, 5, 5], [2, 3, 12, 3, 12, 11]]),
    ),
    'an annotation with id 0': Case(
        'changed', 'annotations with id 0, replaced for evaluation: 1', change('annotations', id=0)
    ),
    'an image without objects': Case(
        'dropped',
        'images without objects: 1',
        lambda: {**valid(), 'annotations': valid()['annotations'][1:2]},
    ),
}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize('name', REJECTED)
def test_invalid_files_raise_with_file_and_reason(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / 'train.json', REJECTED[name].make())
    with pytest.raises(UserError) as caught:
        check_coco(path, CLASSES, with_masks=True)
    assert str(caught.value).startswith(repr(str(path)))
    assert REJECTED[name].message in str(caught.value)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('name', COUNTED)
def test_counts_match_what_mmdet_drops_and_changes(name: str, tmp_path: Path) -> None:
    from mmdet.datasets import CocoDataset

    case = COUNTED[name]
    path = write(tmp_path / 'train.json', case.make())
    assert case.message in format_counts(path, check_coco(path, CLASSES, with_masks=True))
    for i in (7, 8):
        picture().save(tmp_path / f'{i}.png')
    dataset = CocoDataset(
        ann_file=str(path),
        data_prefix={'img': str(tmp_path)},
        metainfo={'classes': CLASSES},
        filter_cfg={'filter_empty_gt': True},
        pipeline=[
            {'type': 'inline.LoadImage'},
            {'type': 'mmdet.LoadAnnotations', 'with_bbox': True, 'with_mask': True},
            {'type': 'mmdet.Resize', 'scale': (40, 24), 'keep_ratio': True},
            {'type': 'mmdet.PackDetInputs', 'meta_keys': ('img_id',)},
        ],
    )
    samples = [dataset[i]['data_samples'] for i in range(len(dataset))]
    used = sum(len(sample.gt_instances) for sample in samples)
    ignored = sum(len(sample.ignored_instances) for sample in samples)
    if name == 'an image without objects':
        assert [sample.img_id for sample in samples] == [8]
        return
    changed = (2, 1) if 'ignored by loss' in case.message else (3, 0)
    assert (used, ignored) == ((2, 0) if case.outcome == 'dropped' else changed)
    boxes = [box for sample in samples for box in sample.gt_instances.bboxes.tensor.tolist()]
    assert all(0 <= left < right <= 40 and 0 <= top < bottom <= 24 for left, top, right, bottom in boxes)


def test_a_valid_file_has_no_counts(tmp_path: Path) -> None:
    path = write(tmp_path / 'train.json', valid())
    assert check_coco(path, CLASSES, with_masks=True) == {}
    rounded = valid()
    rounded['annotations'][0]['bbox'] = [30.2, 15.9, 10.0, 8.4]
    assert check_coco(write(path, rounded), CLASSES) == {}


def test_a_test_split_needs_no_annotations(tmp_path: Path) -> None:
    tables = valid()
    del tables['annotations']
    path = write(tmp_path / 'test.json', tables)
    assert check_coco(path, CLASSES, require_annotations=False) == {'images without objects': 2}
    with pytest.raises(UserError, match="has no list 'annotations'"):
        check_coco(path, CLASSES)


def test_decoded_rle_counts_fill_the_image() -> None:
    for height, width in ((24, 40), (300, 7), (1, 1), (128, 256)):
        for share in (0.0, 0.02, 0.5, 1.0):
            mask = (RANDOM.random((height, width)) < share).astype('uint8', order='F')
            compressed = coco_mask.encode(mask)['counts'].decode()
            assert sum(decode_rle_counts(compressed) or ()) == height * width
            assert decode_rle_counts(compressed + 'o') is None
