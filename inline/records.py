"""Files of measured lines."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from inline.whole_files import whole_file


def write_lines(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, str]]) -> None:
    """Replace a CSV file as a whole; a column that a line lacks is left empty."""
    with whole_file(path) as part, part.open('w', newline='') as file:
        writer = csv.DictWriter(file, columns, restval='', lineterminator='\n')
        writer.writeheader()
        writer.writerows(lines)
