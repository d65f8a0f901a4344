"""Every kind of problem in a copy of ADE20K is reported."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from inline.datasets.prepare.ade20k import Ade20kSpec, check
from inline.datasets.prepare.inspection import Decoding

SMALL = Ade20kSpec(training=2, validation=2)


@pytest.fixture
def ade(datasets: Path) -> Path:
    return datasets / 'ade' / 'ADEChallengeData2016'


def problems(root: Path, spec: Ade20kSpec = SMALL) -> list[str]:
    return [
        f'{report.name}: {problem}' for report in check(root, Decoding(), spec) for problem in report.problems
    ]


def test_a_complete_copy_has_no_problems(ade: Path) -> None:
    reports = check(ade, Decoding(), SMALL)
    assert [report.problems for report in reports] == [[]] * 4
    assert [report.found for report in reports] == ['2 images', '2 label maps'] * 2


def test_the_public_counts_and_source(ade: Path) -> None:
    reports = check(ade, None)
    assert [report.problems for report in reports] == [
        ['images: 2, expected 20,210'],
        ['label maps: 2, expected 20,210'],
        ['images: 2, expected 2,000'],
        ['label maps: 2, expected 2,000'],
    ]
    assert {report.source for report in reports} == {
        'http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip'
    }


def test_images_and_label_maps_are_matched(ade: Path) -> None:
    labels = ade / 'annotations' / 'training'
    (labels / '0.png').rename(labels / '5.png')
    assert problems(ade) == [
        'images/training: label maps without an image: 1 (5.png)',
        'annotations/training: images without a label map: 1 (0.jpg)',
    ]


@pytest.mark.parametrize(
    ('labels', 'problem'),
    [
        (
            np.zeros((60, 160)),
            'label maps whose size differs from that of their image: 1 (1.png: 160x60 instead of 160x120)',
        ),
        (np.full((120, 160), 200), 'label maps with a value above 150: 1 (1.png: 200)'),
        (np.eye(120, 160) * 151, 'label maps with a value above 150: 1 (1.png: 151)'),
        (np.zeros((120, 160, 3)), 'label maps with several channels: 1 (1.png: RGB)'),
    ],
)
def test_invalid_label_maps_are_reported(ade: Path, labels: np.ndarray, problem: str) -> None:
    assert cv2.imwrite(str(ade / 'annotations' / 'validation' / '1.png'), labels.astype(np.uint8))
    assert problems(ade) == [f'annotations/validation: {problem}']


def test_the_highest_label_is_allowed(ade: Path) -> None:
    labels = np.full((120, 160), 150, np.uint8)
    assert cv2.imwrite(str(ade / 'annotations' / 'training' / '1.png'), labels)
    assert problems(ade) == []


def test_damaged_files_are_reported_once(ade: Path) -> None:
    for name in ('images/training/1.jpg', 'annotations/training/0.png'):
        path = ade / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    images, labels = problems(ade)
    assert images.startswith('images/training: images that cannot be decoded: 1 (1.jpg: ')
    assert labels.startswith('annotations/training: label maps that cannot be decoded: 1 (0.png: ')


def test_missing_folders_are_reported(tmp_path: Path) -> None:
    assert problems(tmp_path) == [
        'images/training: the folder is missing, expected 2 images',
        'annotations/training: the folder is missing, expected 2 label maps',
        'images/validation: the folder is missing, expected 2 images',
        'annotations/validation: the folder is missing, expected 2 label maps',
    ]
