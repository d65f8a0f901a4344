"""Atomic file writes.

A process that is killed while writing, or a full disk, leaves the old file or no file. The final name never
holds a partial file.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inline.utils.errors import UserError

_TEMPORARY = re.compile(r'\..+\.\d+\.part')


def atomic_write(path: str | Path, content: bytes) -> None:
    """Replace the file at `path` with `content` in one step, after all of it is on disk."""
    target = Path(path)
    # A symbolic link is replaced, not followed: in an untrusted folder it may point to any file. Links in
    # /dev, such as /dev/stdout, belong to the system.
    is_foreign_link = target.is_symlink() and target.parent != Path('/dev')
    if target.exists() and not target.is_file() and not is_foreign_link:
        # Write to devices and pipes directly; they must not be replaced.
        target.write_bytes(content)
        return
    with atomic_file(target) as temporary:
        temporary.write_bytes(content)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to; rename it to `path` on success, delete it after an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}.part')
    # Do not write through a link with this name.
    with suppress(OSError):
        temporary.unlink()
    try:
        yield temporary
        with temporary.open('rb') as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def make_folder(flag: str, path: Path) -> Path:
    """Create the output folder that `flag` names, before any work is done, and return it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'{flag} {str(path)!r}: cannot create this folder: {error.strerror}') from error
    return path


def check_links(folder: Path) -> None:
    """Raise a :class:`UserError` for a symbolic link in `folder` that leads out of it.

    A run writes logs, its config and checkpoints there, and must not write through the link.
    """
    inside = folder.resolve()
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise UserError(
                    f'{str(path)!r} is a symbolic link to {os.readlink(path)!r}, outside of the folder: '
                    'a run would write through it; remove the link or choose another --work-dir'
                )


def remove_temporary_files(folder: str | Path) -> list[str]:
    """Delete the temporary files that killed processes left in `folder` and return their names."""
    paths = [path for path in Path(folder).glob('.*.part') if _TEMPORARY.fullmatch(path.name)]
    for path in paths:
        path.unlink(missing_ok=True)
    return [path.name for path in paths]


def _sync_folder(folder: Path) -> None:
    """Flush the directory entry: the new name must survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    # Some network file systems do not support this. The file itself is complete anyway.
    with suppress(OSError):
        os.fsync(handle)
    os.close(handle)
