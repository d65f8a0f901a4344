"""Reading a dataset in tests, with a folder for what the reader writes."""

import tempfile
from pathlib import Path
from typing import Any

from inline.datasets.custom import CustomData, ReadOptions
from inline.datasets.custom.fitting import read_custom_data


def read(task: str, root: Path, **options: Any) -> CustomData:
    """Read a dataset; lists and converted annotations are in a new folder outside of it."""
    return read_custom_data(task, root, ReadOptions(Path(tempfile.mkdtemp(dir=root.parent)), **options))
