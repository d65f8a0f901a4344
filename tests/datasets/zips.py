"""Replacing a folder by a zip."""

import shutil
import zipfile
from pathlib import Path


def pack(folder: Path, leading: str = '', compression: int = zipfile.ZIP_STORED) -> Path:
    """Replace a folder by a zip of its content, with an optional leading folder inside."""
    packed = folder.with_name(f'{folder.name}.zip')
    with zipfile.ZipFile(packed, 'w', compression) as file:
        # Unsorted and with entries for folders, as some tools write them.
        for path in sorted(folder.rglob('*'), reverse=True):
            file.write(path, leading + path.relative_to(folder).as_posix())
    shutil.rmtree(folder)
    return packed
