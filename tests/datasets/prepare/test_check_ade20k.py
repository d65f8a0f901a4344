"""Each kind of fault, planted into a small copy of ADE20K, is named."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from inline.datasets.prepare.ade20k import Ade20kSpec, check
from inline.datasets.prepare.images import Decoding

SMALL = Ade20kSpec(training=2, validation=2)


@pytest.fixture
def ade(data_sets: Path) -> Path:
    return data_sets / 'ade' / 'ADEChallengeData2016'


def problems(root: Path, spec: Ade20kSpec = SMALL) -> list[str]:
    return [f'{part.name}: {problem}' for part in check(root, Decoding(), spec) for problem in part.problems]


def test_a_whole_copy_has_no_problem(ade: Path) -> None:
    parts = check(ade, Decoding(), SMALL)
    assert [part.problems for part in parts] == [[]] * 4
    assert [part.found for part in parts] == ['2 images', '2 label maps'] * 2


def test_the_public_counts_and_source(ade: Path) -> None:
    parts = check(ade, None)
    assert [part.problems for part in parts] == [
        ['images: 2, expected 20,210'],
        ['label maps: 2, expected 20,210'],
        ['images: 2, expected 2,000'],
        ['label maps: 2, expected 2,000'],
    ]
    assert {part.source for part in parts} == {
        'http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip'
    }


def test_images_and_label_maps_are_compared(ade: Path) -> None:
    labels = ade / 'annotations' / 'training'
    (labels / '0.png').rename(labels / '5.png')
    assert problems(ade) == [
        'images/training: label maps without an image: 1 (5.png)',
        'annotations/training: images without a label map: 1 (0.jpg)',
    ]


@pytest.mark.parametrize(
    ('labels', 'told'),
    [
        (np.zeros((60, 160)), 'label maps of another size than their image: 1 (1.png: 160x60 for 160x120)'),
        (np.full((120, 160), 200), 'label maps with a value above 150: 1 (1.png: 200)'),
        (np.eye(120, 160) * 151, 'label maps with a value above 150: 1 (1.png: 151)'),
        (np.zeros((120, 160, 3)), 'label maps with several channels: 1 (1.png: RGB)'),
    ],
)
def test_label_maps_that_do_not_fit_are_told(ade: Path, labels: np.ndarray, told: str) -> None:
    assert cv2.imwrite(str(ade / 'annotations' / 'validation' / '1.png'), labels.astype(np.uint8))
    assert problems(ade) == [f'annotations/validation: {told}']


def test_the_highest_label_is_allowed(ade: Path) -> None:
    labels = np.full((120, 160), 150, np.uint8)
    assert cv2.imwrite(str(ade / 'annotations' / 'training' / '1.png'), labels)
    assert problems(ade) == []


def test_broken_files_are_told_once(ade: Path) -> None:
    for name in ('images/training/1.jpg', 'annotations/training/0.png'):
        path = ade / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    images, labels = problems(ade)
    assert images.startswith('images/training: images that cannot be decoded: 1 (1.jpg: ')
    assert labels.startswith('annotations/training: label maps that cannot be decoded: 1 (0.png: ')


def test_missing_folders_are_told(tmp_path: Path) -> None:
    assert problems(tmp_path) == [
        'images/training: the folder is missing, 2 images expected',
        'annotations/training: the folder is missing, 2 label maps expected',
        'images/validation: the folder is missing, 2 images expected',
        'annotations/validation: the folder is missing, 2 label maps expected',
    ]
