"""COCO files of every bad kind: refused with file and id, or what is left out is counted and left out."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pycocotools import mask as coco_mask

from inline.datasets.coco_check import check_coco, describe_found
from inline.datasets.coco_masks import unpack_runs
from inline.errors import UserError
from tests.datasets.bad_data import RANDOM, Row, picture

CLASSES = ('cat', 'dog')
Tables = dict[str, Any]


def good() -> Tables:
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
    """A file whose last row of a table has other values; those that are None are missing."""

    def make() -> Tables:
        tables = good()
        row = tables[table][-1]
        row.update(values)
        for key in [key for key, value in row.items() if value is None]:
            del row[key]
        return tables

    return make


def without(table: str) -> Callable[[], Tables]:
    return lambda: {**good(), table: []}


def runs(size: list[int], counts: Any) -> Callable[[], Tables]:
    return change('annotations', segmentation={'size': size, 'counts': counts})


def polygon(points: Any) -> Callable[[], Tables]:
    return change('annotations', segmentation=[points])


REFUSED = {
    'an empty annotation file': Row('refused', 'is not JSON', lambda: ''),
    'an annotation file that is not JSON': Row('refused', 'is not JSON', lambda: '{"images": [}'),
    'an annotation file cut off': Row('refused', 'is not JSON', lambda: json.dumps(good())[:-30]),
    'an annotation file of another format': Row(
        'refused', "has no 'images': it is not in COCO's format", lambda: [1, 2]
    ),
    'a COCO file without its list of categories': Row(
        'refused',
        "has no 'categories': it is not in COCO's format",
        lambda: {key: rows for key, rows in good().items() if key != 'categories'},
    ),
    'a COCO file of no images': Row('refused', 'lists no images', without('images')),
    'a COCO file of no objects': Row(
        'refused', 'has no object of the classes cat, dog that can be used', without('annotations')
    ),
    'an image without a file name': Row(
        'refused', "entry 1 of 'images' (id 8) has no 'file_name'", change('images', file_name=None)
    ),
    'an image without its size': Row(
        'refused', "entry 1 of 'images' (id 8) has no 'height'", change('images', height=None)
    ),
    'an image of no size': Row(
        'refused', 'image 8 has size 0x24: must be positive', change('images', width=0)
    ),
    'an object without a box': Row(
        'refused', "entry 2 of 'annotations' (id 22) has no 'bbox'", change('annotations', bbox=None)
    ),
    'an object without an area': Row(
        'refused', "entry 2 of 'annotations' (id 22) has no 'area'", change('annotations', area=None)
    ),
    'a box with NaN or infinity': Row(
        'refused',
        'annotation 22 has bbox [1, 2, nan, 4]: must be four finite numbers',
        change('annotations', bbox=[1, 2, float('nan'), 4]),
    ),
    'a box of three numbers': Row(
        'refused',
        'annotation 22 has bbox [1, 2, 3]: must be four finite numbers',
        change('annotations', bbox=[1, 2, 3]),
    ),
    'a box of words': Row(
        'refused',
        "annotation 22 has bbox ['1', '2', '3', '4']: must be four finite numbers",
        change('annotations', bbox=['1', '2', '3', '4']),
    ),
    'an object of an unknown image': Row(
        'refused', 'annotation 22 is of image 99, which is not listed', change('annotations', image_id=99)
    ),
    'an object of an unknown category': Row(
        'refused',
        'annotation 22 is of category 4, which is not listed',
        change('annotations', category_id=4),
    ),
    'a box with a number of 30 digits': Row(
        'refused',
        f'annotation 22 has bbox [1, 2, {10**30}, 4]: must be four finite numbers below 2**31',
        change('annotations', bbox=[1, 2, 10**30, 4]),
    ),
    'an area of 30 digits': Row(
        'refused',
        f'area of annotations id 22 is {10**30}: must be a finite number below 2**31',
        change('annotations', area=10**30),
    ),
    'an image with a width of 30 digits': Row(
        'refused',
        f'width of images id 8 is {10**30}: must be a finite number below 2**31',
        change('images', width=10**30),
    ),
    'an area beyond all floats': Row(
        'refused', 'area of annotations id 22 is 1', change('annotations', area=10**400)
    ),
    'an image whose size is a word': Row(
        'refused', "width of images id 8 is '40': must be a finite number", change('images', width='40')
    ),
    'a category whose name is a list': Row(
        'refused', "category 5 has name ['dog']: must be a word", change('categories', name=['dog'])
    ),
    'an id of two images': Row('refused', 'id 7 is of several images', change('images', id=7)),
    'an id of two objects': Row('refused', 'id 20 is of several annotations', change('annotations', id=20)),
    'an id of two categories': Row('refused', 'id 3 is of several categories', change('categories', id=3)),
    'an id that is no whole number': Row(
        'refused', "entry 1 of 'images' has id '8': must be a whole number", change('images', id='8')
    ),
    'a class without a category': Row(
        'refused',
        "has no category 'dog', which is a class of the config",
        change('categories', name='wolf'),
    ),
    'categories in another order than the classes': Row(
        'refused',
        "category 'dog' is number 0 of the classes there, and number 1 of the config",
        lambda: {**good(), 'categories': good()['categories'][::-1]},
    ),
    'an object without a mask, where masks are trained': Row(
        'refused',
        'annotation 22 has no segmentation, and the config trains masks',
        change('annotations', segmentation=None),
    ),
    'a run-length mask of another size than its image': Row(
        'refused',
        'the mask of annotation 22 has size [24, 41], and its image [24, 40]',
        runs([24, 41], [984]),
    ),
    'a run-length mask whose runs do not fill the image': Row(
        'refused',
        'the mask of annotation 22 has runs of 900 pixels, and its image 960',
        runs([24, 40], [400, 500]),
    ),
    'a run-length mask of a negative run': Row(
        'refused',
        'the mask of annotation 22 has runs of [-40, 1000]: must be whole numbers, 0 or more',
        runs([24, 40], [-40, 1000]),
    ),
    'a run-length mask of words': Row(
        'refused',
        "the mask of annotation 22 has runs of ['400', '560']: must be whole numbers, 0 or more",
        runs([24, 40], ['400', '560']),
    ),
    'a run-length mask without runs': Row(
        'refused', 'the mask of annotation 22 has runs of None: must be whole numbers', runs([24, 40], None)
    ),
    'a packed run-length mask cut off': Row(
        'refused', "the mask of annotation 22 has runs of 'Pn0o': must be", runs([24, 40], 'Pn0o')
    ),
    'a packed run-length mask of a negative run': Row(
        'refused', "the mask of annotation 22 has runs of 'hNXo0': must be", runs([24, 40], 'hNXo0')
    ),
    'a mask that is a number': Row(
        'refused',
        'the mask of annotation 22 is 5: must be polygons or runs',
        change('annotations', segmentation=5),
    ),
    'a polygon far outside its image': Row(
        'refused',
        'the mask of annotation 22 has a polygon with the number 1000000000.0, far outside its image',
        polygon([0, 0, 1e9, 0, 1e9, 1e9, 0, 1e9]),
    ),
    'a polygon of words': Row(
        'refused',
        "the mask of annotation 22 has the polygon ['2', '3', '12', '3', '12', '11']: must be a list",
        polygon(['2', '3', '12', '3', '12', '11']),
    ),
    'a polygon of points in lists': Row(
        'refused',
        'the mask of annotation 22 has the polygon [[2, 3], [12, 3], [12, 11]]: must be a list of finite',
        polygon([[2, 3], [12, 3], [12, 11]]),
    ),
    'a polygon with NaN or infinity': Row(
        'refused',
        'the mask of annotation 22 has the polygon [2, 3, nan, 3, 12, 11]: must be a list of finite numbers',
        polygon([2, 3, float('nan'), 3, 12, 11]),
    ),
    'a polygon with a number beyond all floats': Row(
        'refused',
        'the mask of annotation 22 has the polygon [2, 3, 1',
        polygon([2, 3, 10**400, 3, 12, 11]),
    ),
    'no polygon where one should be': Row(
        'refused', 'the mask of annotation 22 has the polygon None: must be a list of finite', polygon(None)
    ),
    'a polygon of words of an object that is left out': Row(
        'refused',
        "the mask of annotation 22 has the polygon ['a']: must be a list of finite numbers",
        change('annotations', area=0, segmentation=[['a']]),
    ),
    'a packed run-length mask that is damaged': Row(
        'refused', 'the mask of annotation 22 has runs of', runs([24, 40], 'oops')
    ),
}
COUNTED = {
    'a box outside its image': Row(
        'left out', '1 boxes outside their image are left out', change('annotations', bbox=[50, 3, 10, 8])
    ),
    'a box of no area': Row(
        'left out',
        '1 boxes less than a pixel wide or high are left out',
        change('annotations', bbox=[2, 3, 0, 8]),
    ),
    'a box of negative size': Row(
        'left out', '1 boxes of negative size are left out', change('annotations', bbox=[12, 11, -10, -8])
    ),
    'an object of area 0': Row(
        'left out', '1 objects without a positive area are left out', change('annotations', area=0)
    ),
    'an object of a category that is no class': Row(
        'left out',
        '1 objects of other categories than the classes are left out',
        lambda: {
            **change('annotations', category_id=6)(),
            'categories': [*good()['categories'], {'id': 6, 'name': 'cow'}],
        },
    ),
    'an object that is marked `ignore`': Row(
        'left out', '1 objects marked as ignored are left out', change('annotations', ignore=1)
    ),
    'a box partly outside its image': Row(
        'changed',
        '1 boxes are cut off at the border of their image',
        change('annotations', bbox=[30, 3, 20, 8]),
    ),
    'a crowd': Row(
        'changed', '1 crowds are regions that count neither way', change('annotations', iscrowd=1)
    ),
    'an object whose only polygon has two points': Row(
        'changed',
        '1 objects without a whole polygon count neither way',
        change('annotations', segmentation=[[1, 1, 5, 5]]),
    ),
    'an object with a polygon of two points among others': Row(
        'changed',
        '1 objects lose polygons of less than three points',
        change('annotations', segmentation=[[1, 1, 5, 5], [2, 3, 12, 3, 12, 11]]),
    ),
    'an image without an object': Row(
        'left out',
        '1 images have no object',
        lambda: {**good(), 'annotations': good()['annotations'][1:2]},
    ),
}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize('name', REFUSED)
def test_refused_with_file_and_reason(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / 'train.json', REFUSED[name].make())
    with pytest.raises(UserError) as caught:
        check_coco(path, CLASSES, needs_masks=True)
    assert str(caught.value).startswith(repr(str(path)))
    assert REFUSED[name].told in str(caught.value)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('name', COUNTED)
def test_counted_and_left_out_where_it_is_read(name: str, tmp_path: Path) -> None:
    from mmdet.datasets import CocoDataset

    row = COUNTED[name]
    path = write(tmp_path / 'train.json', row.make())
    found = check_coco(path, CLASSES, needs_masks=True)
    assert row.told in describe_found(path, found)
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
    if name == 'an image without an object':
        assert [sample.img_id for sample in samples] == [8]
        return
    assert (used, ignored) == {'left out': (2, 0)}.get(
        row.outcome, (2, 1) if 'neither way' in row.told else (3, 0)
    )
    boxes = [box for sample in samples for box in sample.gt_instances.bboxes.tensor.tolist()]
    assert all(0 <= left < right <= 40 and 0 <= top < bottom <= 24 for left, top, right, bottom in boxes)


def test_nothing_is_found_in_a_good_file(tmp_path: Path) -> None:
    path = write(tmp_path / 'train.json', good())
    assert check_coco(path, CLASSES, needs_masks=True) == {}
    rounded = good()
    rounded['annotations'][0]['bbox'] = [30.2, 15.9, 10.0, 8.4]
    assert check_coco(write(path, rounded), CLASSES) == {}


def test_what_is_only_tested_needs_no_objects(tmp_path: Path) -> None:
    tables = good()
    del tables['annotations']
    path = write(tmp_path / 'test.json', tables)
    assert check_coco(path, CLASSES, needs_objects=False) == {'images have no object': 2}
    with pytest.raises(UserError, match="has no 'annotations'"):
        check_coco(path, CLASSES)


def test_runs_of_packed_masks_fill_the_image() -> None:
    for height, width in ((24, 40), (300, 7), (1, 1), (128, 256)):
        for share in (0.0, 0.02, 0.5, 1.0):
            mask = (RANDOM.random((height, width)) < share).astype('uint8', order='F')
            packed = coco_mask.encode(mask)['counts'].decode()
            assert sum(unpack_runs(packed) or ()) == height * width
            assert unpack_runs(packed + 'o') is None
