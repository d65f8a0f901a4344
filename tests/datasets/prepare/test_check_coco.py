"""Every kind of problem in a copy of COCO is reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inline.datasets.prepare.coco import CocoSpec, check
from inline.datasets.prepare.inspection import Decoding, format_reports

SMALL = CocoSpec(images={'train2017': 2, 'val2017': 2})
ANNOTATIONS = 'annotations/instances_train2017.json'


@pytest.fixture
def coco(datasets: Path) -> Path:
    return datasets / 'coco'


def problems(root: Path, decoding: Decoding | None = None, spec: CocoSpec = SMALL) -> list[str]:
    return [
        f'{report.name}: {problem}' for report in check(root, decoding, spec) for problem in report.problems
    ]


def edit(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = root / ANNOTATIONS
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_complete_copy_has_no_problems(coco: Path) -> None:
    reports = check(coco, Decoding(), SMALL)
    assert [report.problems for report in reports] == [[], [], [], []]
    assert [report.found for report in reports] == ['2 images'] * 2 + [
        '2 objects in 2 images, 80 categories'
    ] * 2


def test_the_public_counts() -> None:
    assert CocoSpec().images == {'train2017': 118_287, 'val2017': 5_000}


def test_counts_and_missing_files_are_reported_with_their_source(coco: Path) -> None:
    (coco / 'train2017').rename(coco / 'elsewhere')
    (coco / 'annotations' / 'instances_val2017.json').unlink()
    reports = check(coco, Decoding(), CocoSpec())
    lines = format_reports('COCO 2017', coco, reports).splitlines()
    assert lines == [
        f'COCO 2017 in {coco}',
        '  BAD  train2017: missing',
        '         the folder is missing, expected 118,287 images',
        '         from http://images.cocodataset.org/zips/train2017.zip',
        '  BAD  val2017: 2 images',
        '         images: 2, expected 5,000',
        '         from http://images.cocodataset.org/zips/val2017.zip',
        '  BAD  annotations/instances_train2017.json: 2 objects in 2 images, 80 categories',
        '         images: 2, expected 118,287',
        '         from http://images.cocodataset.org/annotations/annotations_trainval2017.zip',
        '  BAD  annotations/instances_val2017.json: missing',
        '         the file is missing',
        '         from http://images.cocodataset.org/annotations/annotations_trainval2017.zip',
    ]


def test_images_and_annotations_are_matched(coco: Path) -> None:
    (coco / 'train2017' / '1.jpg').rename(coco / 'train2017' / '7.jpg')
    assert problems(coco) == [
        f'train2017: images in {ANNOTATIONS} that are missing: 1 (1.jpg)',
        f'train2017: images that are not in {ANNOTATIONS}: 1 (7.jpg)',
    ]


def test_damaged_images_are_reported(coco: Path) -> None:
    image = coco / 'val2017' / '2.jpg'
    image.write_bytes(image.read_bytes()[:-200])
    (coco / 'val2017' / '1.jpg').write_bytes(b'<html>404</html>')
    (line,) = problems(coco, Decoding())
    assert line.startswith('val2017: images that cannot be decoded: 2 (1.jpg: not an image, 2.jpg: ')
    assert 'truncated' in line
    assert problems(coco) == []


@pytest.mark.parametrize(
    ('change', 'problem'),
    [
        (lambda c: c['annotations'][0].update(image_id=99),
         'annotation 1 has image_id 99, which is not listed'),
        (lambda c: c['annotations'][1].update(category_id=[1]),
         'annotation 2 has category_id [1], which is not listed'),
        (lambda c: c['annotations'][0].update(bbox=[1, 2, 0, 4]),
         'boxes without a positive size: 1 (id 1: [1, 2, 0, 4])'),
        (lambda c: c['annotations'][0].update(bbox=[1, float('nan'), 3, 4]),
         'annotation 1 has bbox [1, nan, 3, 4]: must be four finite numbers below 2**31'),
        (lambda c: c['annotations'][0].pop('bbox'),
         "annotations[0] (id 1) has no 'bbox'"),
        (lambda c: c['annotations'][0].update(id=2), "id 2 occurs more than once in 'annotations'"),
        (lambda c: c['annotations'].append('text'), "annotations[2] is 'text': must be a dict"),
        (lambda c: c['categories'].pop(), 'categories: 79, expected 80'),
        (lambda c: c.pop('categories'), "has no list 'categories': not a COCO annotation file"),
        (lambda c: c['images'][0].pop('file_name'), "images[0] (id 1) has no 'file_name'"),
    ],
)  # fmt: skip
def test_invalid_annotations_are_reported(
    coco: Path, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    edit(coco, change)
    assert f'{ANNOTATIONS}: {problem}' in problems(coco)


def test_flat_boxes_of_the_public_file_are_accepted(coco: Path) -> None:
    edit(coco, lambda content: content['annotations'][0].update(bbox=[1, 2, 3, 0.0]))
    assert len(problems(coco)) == 1
    assert problems(coco, spec=CocoSpec(images=SMALL.images, flat_boxes=frozenset({1}))) == []


@pytest.mark.parametrize('text', ['{"images": [', '', '[1, 2]', '\x00'])
def test_a_damaged_file_is_reported(coco: Path, text: str) -> None:
    (coco / ANNOTATIONS).write_text(text)
    (line,) = problems(coco)
    problem = "has no list 'images'" if text == '[1, 2]' else 'is not valid JSON: '
    assert line.startswith(f'{ANNOTATIONS}: {problem}')
