import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mmengine.fileio import LocalBackend

from inline import whole_files
from inline.whole_files import remove_leftovers, write_whole


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """No file of this process may grow beyond `limit` bytes, as with a quota."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_file_is_replaced_by_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / 'new' / 'x.pth'
    for content in (b'first', b'second, longer', b''):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ['x.pth']


@pytest.mark.parametrize('size', [1, 99, 4095])
def test_where_there_is_no_room_the_old_file_stays_and_nothing_else(size: int, tmp_path: Path) -> None:
    path = tmp_path / 'x.pth'
    path.write_bytes(b'old')
    with file_size_limit(size), pytest.raises(OSError, match='too large') as raised:
        write_whole(path, b'n' * 4096)
    assert raised.value.errno == errno.EFBIG
    assert path.read_bytes() == b'old'
    assert os.listdir(tmp_path) == ['x.pth']


@pytest.mark.parametrize('act', ['fsync', 'replace'])
def test_an_error_at_any_act_leaves_the_old_file(
    act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    path = tmp_path / 'x.pth'
    path.write_bytes(b'old')
    monkeypatch.setattr(os, act, fail)
    with pytest.raises(OSError, match='No space left'):
        write_whole(path, b'new')
    assert path.read_bytes() == b'old'
    assert os.listdir(tmp_path) == ['x.pth']


def test_the_content_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, 'fsync', lambda handle: (acts.append('fsync'), fsync(handle)))
    monkeypatch.setattr(os, 'replace', lambda a, b: (acts.append('replace'), replace(a, b)))
    write_whole(tmp_path / 'x.pth', b'new')
    assert acts == ['fsync', 'replace', 'fsync']


def test_a_folder_that_cannot_be_synchronised_does_not_spoil_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def refuse_folders(handle: int) -> None:
        if os.path.isdir(f'/proc/self/fd/{handle}'):
            raise OSError(errno.EINVAL, 'Invalid argument')
        fsync(handle)

    monkeypatch.setattr(os, 'fsync', refuse_folders)
    write_whole(tmp_path / 'x.pth', b'new')
    assert (tmp_path / 'x.pth').read_bytes() == b'new'


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / 'there').mkdir()
    (tmp_path / 'link').symlink_to(tmp_path / 'there' / 'x.pth')
    write_whole(tmp_path / 'link', b'new')
    assert (tmp_path / 'link').is_symlink()
    assert (tmp_path / 'there' / 'x.pth').read_bytes() == b'new'
    write_whole('/dev/null', b'new')
    assert Path('/dev/null').is_char_device()


def test_what_a_killed_save_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = ['iter_2.pth', '.hidden', '.part', 'movie.part', '.notes.part']
    for name in ['.iter_4.pth.123.part', '.last_checkpoint.9.part', *kept]:
        (tmp_path / name).touch()
    assert sorted(remove_leftovers(tmp_path)) == ['.iter_4.pth.123.part', '.last_checkpoint.9.part']
    assert sorted(os.listdir(tmp_path)) == sorted(kept)
    assert remove_leftovers(tmp_path / 'missing') == []


def test_mmengine_writes_whole_files_once_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('put', 'put_text'):
        monkeypatch.setattr(LocalBackend, name, getattr(LocalBackend, name))
    whole_files.install()
    backend = LocalBackend()
    backend.put(b'old', tmp_path / 'x.pth')
    with file_size_limit(5), pytest.raises(OSError, match='too large'):
        backend.put(b'too long', tmp_path / 'x.pth')
    backend.put_text('ü', tmp_path / 'x.txt', encoding='latin-1')
    assert (tmp_path / 'x.pth').read_bytes() == b'old'
    assert (tmp_path / 'x.txt').read_bytes() == b'\xfc'
