"""Inspection of images by several processes."""

import os
from pathlib import Path

import pytest

from inline.datasets.prepare.inspection import (
    Decoding,
    FileProblem,
    folder_reader,
    image_decoder,
    inspect_all,
    zip_reader,
)
from inline.datasets.zip_archive import ZipArchive
from inline.utils.errors import UserError
from tests.datasets.zips import pack

NAMES = [f'{i:03}' for i in range(150)]


def odd(name: str) -> FileProblem | None:
    return FileProblem('odd numbers', name) if int(name) % 2 else None


def die_at_70(name: str) -> FileProblem | None:
    if name == '070':
        os._exit(1)
    return None


@pytest.mark.parametrize('workers', [1, 3])
def test_every_name_is_inspected_once(workers: int) -> None:
    problems = inspect_all(odd, NAMES, Decoding(workers), 'numbers')
    assert sorted(problem.name for problem in problems) == NAMES[1::2]


def test_a_sample_is_evenly_spaced() -> None:
    assert list(Decoding(limit=3).sample(NAMES)) == ['000', '050', '100']
    assert list(Decoding(limit=200).sample(NAMES)) == NAMES
    assert inspect_all(odd, [], Decoding(2), 'nothing') == []


def test_a_dead_worker_is_reported() -> None:
    with pytest.raises(UserError, match='a worker process died'):
        inspect_all(die_at_70, NAMES, Decoding(2), 'numbers')


def test_zero_workers_are_rejected() -> None:
    with pytest.raises(UserError, match='--workers 0: must be at least 1'):
        Decoding(0)


def test_truncated_jpegs_are_found(tiny_datasets: Path, tmp_path: Path) -> None:
    """At any length except without the end marker of two bytes."""
    content = (tiny_datasets / 'coco' / 'train2017' / '1.jpg').read_bytes()
    inspect = image_decoder(folder_reader(tmp_path))
    (tmp_path / 'complete.jpg').write_bytes(content)
    assert inspect('complete.jpg') is None
    for cut in (0, 1, 100, len(content) // 2, len(content) - 50):
        (tmp_path / 'cut.jpg').write_bytes(content[:cut])
        problem = inspect('cut.jpg')
        assert problem is not None, cut
        assert problem.name == 'cut.jpg'


def test_folders_and_zips_give_the_same_content(datasets: Path) -> None:
    folder = datasets / 'imagenet' / 'train'
    expected = folder_reader(folder)('n00000001/0.JPEG')
    assert zip_reader(ZipArchive(pack(folder, 'train/')), 'train/')('n00000001/0.JPEG') == expected
