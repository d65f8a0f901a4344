"""Files that are written whole or not at all.

A process that is killed while it writes, or a disk that is full, leaves the old file or none: half a file
never stands under the final name.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inline.errors import UserError

_PART = re.compile(r'\..+\.\d+\.part')


def write_whole(path: str | Path, content: bytes) -> None:
    """Put `content` in place of what is at `path`, in one step, once all of it is on the disk."""
    # A link stays a link, and its target is what is replaced.
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        # A device or a pipe is written to, never replaced.
        target.write_bytes(content)
        return
    with whole_file(target) as part:
        part.write_bytes(content)


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A path to write to. Once it is on the disk it takes the place of `path`; after an error it goes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'.{path.name}.{os.getpid()}.part')
    try:
        yield part
        with part.open('rb') as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    _sync_folder(path.parent)


def make_folder(flag: str, path: Path) -> Path:
    """The folder to write to that `flag` names, made before any work is done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'{flag} {str(path)!r} cannot be a folder: {error.strerror}') from error
    return path


def remove_leftovers(folder: str | Path) -> list[str]:
    """Remove what a killed process had begun to write in `folder`; the names of what there was."""
    parts = [path for path in Path(folder).glob('.*.part') if _PART.fullmatch(path.name)]
    for part in parts:
        part.unlink(missing_ok=True)
    return [part.name for part in parts]


def install() -> None:
    """Let MMEngine write its files whole, checkpoints among them."""
    from mmengine.fileio import LocalBackend

    LocalBackend.put = _put
    LocalBackend.put_text = _put_text


def _put(self: object, obj: bytes, filepath: str | Path) -> None:  # noqa: ARG001 (MMEngine's method)
    write_whole(filepath, obj)


def _put_text(self: object, obj: str, filepath: str | Path, encoding: str = 'utf-8') -> None:  # noqa: ARG001
    write_whole(filepath, obj.encode(encoding))


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    # Some network file systems refuse this; the file is in its place all the same.
    with suppress(OSError):
        os.fsync(handle)
    os.close(handle)
