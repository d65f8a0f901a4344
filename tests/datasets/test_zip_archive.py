import os
import pickle
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inline.datasets.zip_archive import ZipArchive
from inline.errors import UserError


def write_zip(path: Path, content: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, 'w', compression) as file:
        for name, data in content.items():
            file.writestr(name, data)
    return path


@pytest.mark.parametrize('compression', [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_reads_what_the_standard_library_reads(tmp_path: Path, compression: int) -> None:
    content = {f'b/{i}.bin': os.urandom(50) * i for i in range(20)} | {'a.txt': b'', 'b0/é.bin': b'x'}
    archive = ZipArchive(write_zip(tmp_path / 'a.zip', content, compression))
    assert archive.names() == sorted(content)
    assert {name: archive.read(name) for name in archive.names()} == content


segments = st.text(st.sampled_from('ab0.é'), min_size=1, max_size=3).filter(lambda s: s.strip('.'))


@given(st.sets(st.lists(segments, min_size=1, max_size=3).map('/'.join), max_size=12))
def test_listing_agrees_with_a_search_through_all_names(
    tmp_path_factory: pytest.TempPathFactory, names: set[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / 'listing.zip'
    archive = ZipArchive(write_zip(path, dict.fromkeys(names, b'')))
    for folder in ['', *{f'{name.rpartition("/")[0]}/' for name in names if '/' in name}, 'a/', 'no/']:
        below = sorted(name.removeprefix(folder) for name in names if name.startswith(folder))
        assert archive.names(folder) == below
        assert archive.folders(folder) == sorted({name.split('/')[0] for name in below if '/' in name})
    assert all(name in archive for name in names)
    assert 'zzz' not in archive


def test_a_pickle_and_a_fork_open_their_own_file(tmp_path: Path) -> None:
    archive = ZipArchive(write_zip(tmp_path / 'a.zip', {'a': b'first', 'b': b'second'}))
    assert archive.read('a') == b'first'
    assert archive._file is not None
    copy = pickle.loads(pickle.dumps(archive))
    assert copy._file is None
    assert copy.read('b') == b'second'
    child = os.fork()
    if child == 0:
        before = archive._file
        good = archive.read('b') == b'second' and archive._file is not before
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert archive.read('a') == b'first'


def test_damage_is_told(tmp_path: Path) -> None:
    path = write_zip(tmp_path / 'a.zip', {'a': b'x' * 1000, 'b': b'y'})
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'xxx', b'xzx', 1))
    archive = ZipArchive(path)
    with pytest.raises(OSError, match='a is damaged'):
        archive.read('a')
    assert archive.read('b') == b'y'
    with pytest.raises(FileNotFoundError, match=r"has no member 'c'"):
        archive.read('c')
    path.write_bytes(raw[:-40])
    with pytest.raises(UserError, match=r'a\.zip cannot be read as a zip'):
        ZipArchive(path)


def test_folders_and_additions_of_the_system_are_no_members(tmp_path: Path) -> None:
    content = {'train/': b'', 'train/a.JPEG': b'a', '__MACOSX/train/._a.JPEG': b'junk'}
    assert ZipArchive(write_zip(tmp_path / 'a.zip', content)).names() == ['train/a.JPEG']


def test_unusual_packing_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / 'a.zip', {'a': b'x' * 100}, zipfile.ZIP_BZIP2)
    with pytest.raises(UserError, match='a is encrypted or packed in an unusual way'):
        ZipArchive(path)
