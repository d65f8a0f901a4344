"""Files that are written whole or not at all.

A process that is killed while it writes, or a disk that is full, leaves the old file or none: half a file
never stands under the final name.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from mmengine.fileio import LocalBackend

_PART = re.compile(r'\..+\.\d+\.part')


def write_whole(path: str | Path, content: bytes) -> None:
    """Put `content` in place of what is at `path`, in one step, once all of it is on the disk."""
    # A link stays a link, and its target is what is replaced.
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and not target.is_file():
        # A device or a pipe is written to, never replaced.
        target.write_bytes(content)
        return
    part = target.with_name(f'.{target.name}.{os.getpid()}.part')
    try:
        with part.open('wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    _sync_folder(target.parent)


def remove_leftovers(folder: str | Path) -> list[str]:
    """Remove what a killed process had begun to write in `folder`; the names of what there was."""
    parts = [path for path in Path(folder).glob('.*.part') if _PART.fullmatch(path.name)]
    for part in parts:
        part.unlink(missing_ok=True)
    return [part.name for part in parts]


def install() -> None:
    """Let MMEngine write its files whole, checkpoints among them."""
    LocalBackend.put = _put
    LocalBackend.put_text = _put_text


def _put(self: LocalBackend, obj: bytes, filepath: str | Path) -> None:  # noqa: ARG001 (MMEngine's method)
    write_whole(filepath, obj)


def _put_text(self: LocalBackend, obj: str, filepath: str | Path, encoding: str = 'utf-8') -> None:  # noqa: ARG001
    write_whole(filepath, obj.encode(encoding))


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    # Some network file systems refuse this; the file is in its place all the same.
    with suppress(OSError):
        os.fsync(handle)
    os.close(handle)
