import os
import pickle
from pathlib import Path

import pytest

from inline.datasets.prepare.images import DecodeImage, Decoding, FolderFiles, ZipFiles, inspect_all
from inline.datasets.prepare.report import Fault
from inline.datasets.zip_archive import ZipArchive
from inline.errors import UserError
from tests.datasets.zips import pack

NAMES = [f'{i:03}' for i in range(150)]


def odd(name: str) -> Fault | None:
    return Fault('odd numbers', name) if int(name) % 2 else None


def die_at_70(name: str) -> Fault | None:
    if name == '070':
        os._exit(1)
    return None


@pytest.mark.parametrize('workers', [1, 3])
def test_every_name_is_looked_into_once(workers: int) -> None:
    faults = inspect_all(odd, NAMES, Decoding(workers), 'numbers')
    assert sorted(fault.name for fault in faults) == NAMES[1::2]


def test_a_sample_is_spread_evenly() -> None:
    assert list(Decoding(limit=3).choose(NAMES)) == ['000', '050', '100']
    assert list(Decoding(limit=200).choose(NAMES)) == NAMES
    assert inspect_all(odd, [], Decoding(2), 'nothing') == []


def test_a_process_that_dies_is_told_instead_of_waited_for() -> None:
    with pytest.raises(UserError, match='a worker process died'):
        inspect_all(die_at_70, NAMES, Decoding(2), 'numbers')


def test_a_number_of_workers_is_needed() -> None:
    with pytest.raises(UserError, match='--workers 0: must be 1 or more'):
        Decoding(0)


def test_a_cut_is_found_wherever_it_is(stand_ins: Path, tmp_path: Path) -> None:
    """Only the marker of two bytes at the end of a JPEG holds no pixels."""
    content = (stand_ins / 'coco' / 'train2017' / '1.jpg').read_bytes()
    inspect = DecodeImage(FolderFiles(tmp_path))
    (tmp_path / 'whole.jpg').write_bytes(content)
    assert inspect('whole.jpg') is None
    for cut in (0, 1, 100, len(content) // 2, len(content) - 50):
        (tmp_path / 'cut.jpg').write_bytes(content[:cut])
        fault = inspect('cut.jpg')
        assert fault is not None, cut
        assert fault.name == 'cut.jpg'


def test_folders_and_zips_are_read_alike(data_sets: Path) -> None:
    folder = data_sets / 'imagenet' / 'train'
    expected = FolderFiles(folder).read('n00000001/0.JPEG')
    files = ZipFiles(ZipArchive(pack(folder, 'train/')), 'train/')
    assert files.read('n00000001/0.JPEG') == expected
    assert pickle.loads(pickle.dumps(files)).read('n00000001/0.JPEG') == expected
