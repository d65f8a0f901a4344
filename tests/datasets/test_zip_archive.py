"""The zip reader: content, listing, processes, and malicious or damaged files."""

import os
import pickle
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inline.datasets import zip_archive
from inline.datasets.zip_archive import MAX_MEMBER_BYTES, ZipArchive
from inline.utils.errors import UserError


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
def test_listing_matches_a_search_through_all_names(
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


def test_pickled_and_forked_archives_open_their_own_file(tmp_path: Path) -> None:
    archive = ZipArchive(write_zip(tmp_path / 'a.zip', {'a': b'first', 'b': b'second'}))
    assert archive.read('a') == b'first'
    assert archive._file is not None
    copy = pickle.loads(pickle.dumps(archive))
    assert copy._file is None
    assert copy.read('b') == b'second'
    child = os.fork()
    if child == 0:
        before = archive._file
        passed = archive.read('b') == b'second' and archive._file is not before
        os._exit(0 if passed else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert archive.read('a') == b'first'


def test_damage_is_reported(tmp_path: Path) -> None:
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


def test_any_flipped_bit_is_reported_or_changes_no_content(tmp_path: Path) -> None:
    content = {'a/1.bin': b'first', 'é.bin': b'second' * 5}
    with zipfile.ZipFile(tmp_path / 'valid.zip', 'w') as file:
        for (name, data), method in zip(
            content.items(), (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), strict=True
        ):
            file.writestr(name, data, method)
    good = (tmp_path / 'valid.zip').read_bytes()
    path = tmp_path / 'flipped.zip'
    reported = 0
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            archive = ZipArchive(path)
            read = [archive.read(name) for name in archive.names()]
        except (UserError, OSError):
            reported += 1
        else:
            assert set(read) <= set(content.values()), bit
    assert reported > 8 * sum(len(data) for data in content.values()) // 2


def test_folders_and_macos_files_are_not_members(tmp_path: Path) -> None:
    content = {'train/': b'', 'train/a.JPEG': b'a', '__MACOSX/train/._a.JPEG': b'junk'}
    assert ZipArchive(write_zip(tmp_path / 'a.zip', content)).names() == ['train/a.JPEG']


def test_unsupported_compression_is_rejected(tmp_path: Path) -> None:
    path = write_zip(tmp_path / 'a.zip', {'a': b'x' * 100}, zipfile.ZIP_BZIP2)
    with pytest.raises(UserError, match="'a' is encrypted or has an unsupported compression method"):
        ZipArchive(path)


@pytest.mark.parametrize(
    'name',
    [
        '../outside.JPEG',
        'train/../../outside.JPEG',
        'train/./a.JPEG',
        '/etc/passwd',
        'train//a.JPEG',
        '..\\outside.JPEG',
        'train\\a.JPEG',
        'C:/outside.JPEG',
    ],
)
def test_path_traversal_is_rejected(name: str, tmp_path: Path) -> None:
    path = write_zip(tmp_path / 'a.zip', {'good': b'x', name: b'y'})
    with pytest.raises(UserError, match='is not a plain relative path'):
        ZipArchive(path)


def test_symbolic_links_are_rejected(tmp_path: Path) -> None:
    (tmp_path / 'secret').write_text('secret')
    link = zipfile.ZipInfo('link.JPEG')
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / 'a.zip', 'w') as file:
        file.writestr(link, str(tmp_path / 'secret'))
    with pytest.raises(UserError, match=r"'link\.JPEG' is a symbolic link"):
        ZipArchive(tmp_path / 'a.zip')


def test_duplicate_names_are_rejected(tmp_path: Path) -> None:
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / 'a.zip', 'w') as file:
        warnings.simplefilter('ignore')
        file.writestr('a', b'first')
        file.writestr('a', b'second')
    with pytest.raises(UserError, match="'a' occurs twice"):
        ZipArchive(tmp_path / 'a.zip')


def change_directory(path: Path, change: Callable[[bytearray, int], None]) -> Path:
    """Change the directory entry of the only member; `change` gets the bytes and the offset of the entry."""
    raw = bytearray(path.read_bytes())
    change(raw, raw.index(b'PK\x01\x02'))
    path.write_bytes(raw)
    return path


def set_field(offset: int, value: int) -> Callable[[bytearray, int], None]:
    return lambda raw, start: struct.pack_into('<I', raw, start + offset, value)


PACKED_SIZE, SIZE, OFFSET = 20, 24, 42


def test_a_zip_bomb_is_not_decompressed_beyond_its_stated_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zip(tmp_path / 'a.zip', {'a': bytes(50_000_000)}, zipfile.ZIP_DEFLATED)
    archive = ZipArchive(change_directory(path, set_field(SIZE, 1000)))
    decompressed = []
    make = zlib.decompressobj

    class Watched:
        def __init__(self, *options: int) -> None:
            self.inner = make(*options)

        def decompress(self, content: bytes, limit: int) -> bytes:
            decompressed.append(self.inner.decompress(content, limit))
            return decompressed[-1]

    monkeypatch.setattr(zip_archive.zlib, 'decompressobj', Watched)
    with pytest.raises(OSError, match='a is damaged'):
        archive.read('a')
    assert [len(content) for content in decompressed] == [1001]


@pytest.mark.parametrize(
    ('compression', 'change', 'message'),
    [
        (zipfile.ZIP_DEFLATED, set_field(SIZE, MAX_MEMBER_BYTES + 1), 'would decompress to'),
        (zipfile.ZIP_DEFLATED, set_field(PACKED_SIZE, 2_000_000_000), 'lies outside the zip'),
        (zipfile.ZIP_STORED, set_field(OFFSET, 2_000_000_000), 'cannot be read|lies outside the zip'),
        (zipfile.ZIP_STORED, set_field(SIZE, 7), 'is stored with two different sizes'),
    ],
    ids=['bomb', 'packed size', 'offset', 'stored size'],
)
def test_a_wrong_directory_entry_is_rejected(
    compression: int, change: Callable[[bytearray, int], None], message: str, tmp_path: Path
) -> None:
    path = write_zip(tmp_path / 'a.zip', {'a': b'x' * 1000}, compression)
    with pytest.raises(UserError, match=message):
        ZipArchive(change_directory(path, change))


@pytest.mark.parametrize(
    ('compression', 'change'),
    [(zipfile.ZIP_DEFLATED, set_field(SIZE, 1_000_000)), (zipfile.ZIP_STORED, set_field(OFFSET, 5))],
    ids=['too short', 'not a member'],
)
def test_a_wrong_directory_entry_is_detected_when_reading(
    compression: int, change: Callable[[bytearray, int], None], tmp_path: Path
) -> None:
    path = write_zip(tmp_path / 'a.zip', {'a': b'x' * 1000}, compression)
    archive = ZipArchive(change_directory(path, change))
    with pytest.raises(OSError, match='a is damaged'):
        archive.read('a')


def test_names_in_a_label_file_cannot_leave_the_zip(tmp_path: Path) -> None:
    from inline.datasets.imagenet import ZipBackend

    (tmp_path / 'secret').write_text('secret')
    packed = write_zip(tmp_path / 'train.zip', {'n1/a.JPEG': b'x'})
    write_zip(tmp_path / 'other.zip', {'b': b'y'})
    backend = ZipBackend()
    root = f'zip://{packed}!/'
    assert backend.get(backend.join_path(root, 'n1/a.JPEG')) == b'x'
    for name in ('../secret', f'{tmp_path}/secret', '../other.zip!/b', f'zip://{tmp_path}/other.zip!/b'):
        with pytest.raises(FileNotFoundError, match=r'train\.zip has no member'):
            backend.get(backend.join_path(root, name))
