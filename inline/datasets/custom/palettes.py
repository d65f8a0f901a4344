"""Names and colors of the classes of label maps, from files of the dataset."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inline.datasets.custom.layouts import find_named, read_lines, split_folders
from inline.utils.errors import UserError

_PALETTE_FILES = (
    *('class_dict.csv', 'class_dict_seg.csv', 'label_colors.txt', 'labelmap.txt', 'class_colors.csv'),
    *('palette.csv', 'palette.txt', 'colors.csv', 'colors.txt', 'label_colors.csv', 'classes.csv'),
)
_NAME_FILES = ('classes.txt', 'codes.txt', 'class_names.txt', 'labels.txt')
# Written by Roboflow: the columns "Pixel Value" and "Class".
_VALUE_FILE = '_classes.csv'


@dataclass(frozen=True)
class ClassTable:
    """The classes that a file lists.

    Attributes:
        path: The file; None if there is none.
        names: By label.
        colors: RGB by label; empty if the file has none.
    """

    path: Path | None = None
    names: tuple[str, ...] = ()
    colors: tuple[tuple[int, int, int], ...] = ()


def read_class_table(root: Path) -> ClassTable:
    """Return names and colors from a file in `root` or in a folder of a split; empty without a file."""
    folders = [root, *split_folders(root).values()]
    for folder in folders:
        path = find_named(folder, _PALETTE_FILES)
        if path is not None:
            return _read_palette(path)
    for folder in folders:
        path = find_named(folder, _NAME_FILES)
        if path is not None:
            return ClassTable(path, tuple(line.strip() for line in read_lines(path)))
    for folder in folders:
        path = find_named(folder, [_VALUE_FILE])
        if path is not None:
            return _read_values(path)
    return ClassTable()


def _read_palette(path: Path) -> ClassTable:
    """Read lines ``name,r,g,b`` (class_dict.csv), ``r g b name`` (label_colors.txt) or ``name:r,g,b::``."""
    names, colors = [], []
    for number, line in enumerate(read_lines(path), start=1):
        name, numbers = _split_line(line)
        if len(numbers) != 3 or not name or max(numbers) > 255:
            if number == 1 or line.lstrip().startswith('#'):
                # A header.
                continue
            raise UserError(
                f'{str(path)!r}: {line!r} must be a name and three numbers from 0 to 255, '
                'such as "road,128,64,128" or "128 64 128 road"'
            )
        names.append(name)
        colors.append((numbers[0], numbers[1], numbers[2]))
    if not names:
        raise UserError(f'{str(path)!r} lists no classes: must have a name and an RGB color per line')
    _check_unique(path, names, 'name')
    _check_unique(path, colors, 'color')
    return ClassTable(path, tuple(names), tuple(colors))


def _split_line(line: str) -> tuple[str, list[int]]:
    """Return the words of a line that are not numbers, joined, and its numbers."""
    if ':' in line:
        words = [part for field in line.split(':') for part in field.split(',')]
    elif ',' in line or ';' in line:
        words = next(csv.reader([line.replace(';', ',')]))
    else:
        words = line.split()
    words = [word.strip() for word in words if word.strip()]
    numbers = [int(word) for word in words if word.isdecimal()]
    return ' '.join(word for word in words if not word.isdecimal()), numbers


def _read_values(path: Path) -> ClassTable:
    names = {}
    for line in read_lines(path)[1:]:
        value, _, name = line.partition(',')
        if not value.strip().isdecimal() or not name.strip():
            raise UserError(f'{str(path)!r}: {line!r} must be a pixel value and a class')
        names[int(value)] = name.strip()
    if sorted(names) != list(range(len(names))):
        raise UserError(f'{str(path)!r} has the pixel values {sorted(names)}: must be 0, 1, 2, …')
    return ClassTable(path, tuple(names[i] for i in range(len(names))))


def _check_unique(path: Path, values: Sequence[object], what: str) -> None:
    repeated = next((value for i, value in enumerate(values) if value in values[:i]), None)
    if repeated is not None:
        raise UserError(f'{str(path)!r} has the {what} {repeated} more than once')
