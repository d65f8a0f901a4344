"""Atomic writes: the old file survives full disks and errors in any system call."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mmengine.fileio import LocalBackend

from inline.openmmlab.patches import write_files_atomically
from inline.utils.atomic import atomic_write, check_links, remove_temporary_files
from inline.utils.errors import UserError


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Limit the size of the files that this process writes, like a quota."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / 'new' / 'x.pth'
    for content in (b'first', b'second, longer', b''):
        atomic_write(path, content)
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ['x.pth']


@pytest.mark.parametrize('size', [1, 99, 4095])
def test_full_disk_keeps_the_old_file_only(size: int, tmp_path: Path) -> None:
    path = tmp_path / 'x.pth'
    path.write_bytes(b'old')
    with file_size_limit(size), pytest.raises(OSError, match='too large') as raised:
        atomic_write(path, b'n' * 4096)
    assert raised.value.errno == errno.EFBIG
    assert path.read_bytes() == b'old'
    assert os.listdir(tmp_path) == ['x.pth']


@pytest.mark.parametrize('call', ['fsync', 'replace'])
def test_error_in_any_system_call_keeps_the_old_file(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    path = tmp_path / 'x.pth'
    path.write_bytes(b'old')
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match='No space left'):
        atomic_write(path, b'new')
    assert path.read_bytes() == b'old'
    assert os.listdir(tmp_path) == ['x.pth']


def test_content_is_synchronized_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, 'fsync', lambda handle: (calls.append('fsync'), fsync(handle)))
    monkeypatch.setattr(os, 'replace', lambda a, b: (calls.append('replace'), replace(a, b)))
    atomic_write(tmp_path / 'x.pth', b'new')
    assert calls == ['fsync', 'replace', 'fsync']


def test_folder_that_cannot_be_synchronized_is_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def refuse_folders(handle: int) -> None:
        if os.path.isdir(f'/proc/self/fd/{handle}'):
            raise OSError(errno.EINVAL, 'Invalid argument')
        fsync(handle)

    monkeypatch.setattr(os, 'fsync', refuse_folders)
    atomic_write(tmp_path / 'x.pth', b'new')
    assert (tmp_path / 'x.pth').read_bytes() == b'new'


def test_links_are_replaced_and_devices_are_kept(tmp_path: Path) -> None:
    (tmp_path / 'folder').mkdir()
    target = tmp_path / 'folder' / 'x.pth'
    target.write_bytes(b'old')
    temporary = tmp_path / f'.link.{os.getpid()}.part'
    for name in ('link', temporary.name):
        (tmp_path / name).symlink_to(target)
    atomic_write(tmp_path / 'link', b'new')
    assert not (tmp_path / 'link').is_symlink()
    assert (tmp_path / 'link').read_bytes() == b'new'
    assert target.read_bytes() == b'old'
    (tmp_path / 'device').symlink_to('/dev/full')
    atomic_write(tmp_path / 'device', b'new')
    assert (tmp_path / 'device').read_bytes() == b'new'
    atomic_write('/dev/null', b'new')
    assert Path('/dev/null').is_char_device()


def test_links_that_lead_out_of_a_folder_are_refused(tmp_path: Path) -> None:
    folder, outside = tmp_path / 'run', tmp_path / 'outside'
    (folder / 'logs').mkdir(parents=True)
    outside.mkdir()
    (folder / 'latest.pth').symlink_to('iter_20.pth')
    check_links(folder)
    (tmp_path / 'alias').symlink_to(folder)
    check_links(tmp_path / 'alias')
    for name, target in (('started', outside / 'new'), ('20300101_000000', outside), ('logs/x', '../../y')):
        (folder / name).symlink_to(target)
        with pytest.raises(UserError, match=rf"{name}' is a symbolic link to .* outside of the folder"):
            check_links(folder)
        (folder / name).unlink()


def test_only_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    kept = ['iter_2.pth', '.hidden', '.part', 'movie.part', '.notes.part']
    for name in ['.iter_4.pth.123.part', '.last_checkpoint.9.part', *kept]:
        (tmp_path / name).touch()
    assert sorted(remove_temporary_files(tmp_path)) == ['.iter_4.pth.123.part', '.last_checkpoint.9.part']
    assert sorted(os.listdir(tmp_path)) == sorted(kept)
    assert remove_temporary_files(tmp_path / 'missing') == []


def test_patched_mmengine_backend_writes_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('put', 'put_text'):
        monkeypatch.setattr(LocalBackend, name, getattr(LocalBackend, name))
    write_files_atomically()
    backend = LocalBackend()
    backend.put(b'old', tmp_path / 'x.pth')
    with file_size_limit(5), pytest.raises(OSError, match='too large'):
        backend.put(b'too long', tmp_path / 'x.pth')
    backend.put_text('ü', tmp_path / 'x.txt', encoding='latin-1')
    assert (tmp_path / 'x.pth').read_bytes() == b'old'
    assert (tmp_path / 'x.txt').read_bytes() == b'\xfc'
