"""Each kind of fault, planted into a small copy of COCO, is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inline.datasets.prepare.coco import CocoSpec, check
from inline.datasets.prepare.images import Decoding
from inline.datasets.prepare.report import format_report

SMALL = CocoSpec(images={'train2017': 2, 'val2017': 2})
ANNOTATIONS = 'annotations/instances_train2017.json'


@pytest.fixture
def coco(data_sets: Path) -> Path:
    return data_sets / 'coco'


def problems(root: Path, decoding: Decoding | None = None, spec: CocoSpec = SMALL) -> list[str]:
    return [f'{part.name}: {problem}' for part in check(root, decoding, spec) for problem in part.problems]


def edit(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = root / ANNOTATIONS
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_whole_copy_has_no_problem(coco: Path) -> None:
    parts = check(coco, Decoding(), SMALL)
    assert [part.problems for part in parts] == [[], [], [], []]
    assert [part.found for part in parts] == ['2 images'] * 2 + ['2 objects in 2 images, 80 categories'] * 2


def test_the_public_counts() -> None:
    assert CocoSpec().images == {'train2017': 118_287, 'val2017': 5_000}


def test_counts_and_missing_folders_are_told_with_their_source(coco: Path) -> None:
    (coco / 'train2017').rename(coco / 'elsewhere')
    (coco / 'annotations' / 'instances_val2017.json').unlink()
    parts = check(coco, Decoding(), CocoSpec())
    lines = format_report('COCO 2017', coco, parts).splitlines()
    assert lines == [
        f'COCO 2017 in {coco}',
        '  BAD  train2017: missing',
        '         the folder is missing, 118,287 images expected',
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


def test_images_and_annotations_are_compared(coco: Path) -> None:
    (coco / 'train2017' / '1.jpg').rename(coco / 'train2017' / '7.jpg')
    assert problems(coco) == [
        f'train2017: images that {ANNOTATIONS} names and that are missing: 1 (1.jpg)',
        f'train2017: images that {ANNOTATIONS} does not name: 1 (7.jpg)',
    ]


def test_broken_images_are_decoded(coco: Path) -> None:
    image = coco / 'val2017' / '2.jpg'
    image.write_bytes(image.read_bytes()[:-200])
    (coco / 'val2017' / '1.jpg').write_bytes(b'<html>404</html>')
    (line,) = problems(coco, Decoding())
    assert line.startswith('val2017: images that cannot be decoded: 2 (1.jpg: not an image, 2.jpg: ')
    assert 'truncated' in line
    assert problems(coco) == []


@pytest.mark.parametrize(
    ('change', 'told'),
    [
        (lambda c: c['annotations'][0].update(image_id=99),
         'annotations of an unknown image: 1 (id 1: image_id 99)'),
        (lambda c: c['annotations'][1].update(category_id=[1]),
         'annotations of an unknown category: 1 (id 2: category_id [1])'),
        (lambda c: c['annotations'][0].update(bbox=[1, 2, 0, 4]),
         'boxes without a positive size: 1 (id 1: [1, 2, 0, 4])'),
        (lambda c: c['annotations'][0].update(bbox=[1, float('nan'), 3, 4]),
         'boxes that are not four finite numbers: 1 (id 1: [1, nan, 3, 4])'),
        (lambda c: c['annotations'][0].pop('bbox'),
         'boxes that are not four finite numbers: 1 (id 1: None)'),
        (lambda c: c['annotations'][0].update(id=2), 'ids of annotations that are not unique: 1 (2)'),
        (lambda c: c['annotations'].append('text'), 'entries of annotations without an id: 1'),
        (lambda c: c['categories'].pop(), 'categories: 79, expected 80'),
        (lambda c: c.pop('categories'), 'lists that are missing: 1 (categories)'),
        (lambda c: c['images'][0].pop('file_name'), 'images without a file_name: 1 (1)'),
    ],
)  # fmt: skip
def test_annotations_that_do_not_fit_are_told(
    coco: Path, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    edit(coco, change)
    assert f'{ANNOTATIONS}: {told}' in problems(coco)


def test_boxes_that_are_flat_in_the_public_file_are_no_problem(coco: Path) -> None:
    edit(coco, lambda content: content['annotations'][0].update(bbox=[1, 2, 3, 0.0]))
    assert len(problems(coco)) == 1
    assert problems(coco, spec=CocoSpec(images=SMALL.images, flat_boxes=frozenset({1}))) == []


@pytest.mark.parametrize('text', ['{"images": [', '', '[1, 2]', '\x00'])
def test_a_broken_file_is_told(coco: Path, text: str) -> None:
    (coco / ANNOTATIONS).write_text(text)
    (line,) = problems(coco)
    kind = 'lists that are missing: 3' if text == '[1, 2]' else 'cannot be read as JSON: '
    assert line.startswith(f'{ANNOTATIONS}: {kind}')
