"""Files of measured lines that a crash cannot leave half written."""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def write_lines(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, str]]) -> None:
    """Replace a CSV file as a whole; a column that a line lacks is left empty."""
    scratch = path.with_suffix('.part')
    with scratch.open('w', newline='') as file:
        writer = csv.DictWriter(file, columns, restval='', lineterminator='\n')
        writer.writeheader()
        writer.writerows(lines)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
