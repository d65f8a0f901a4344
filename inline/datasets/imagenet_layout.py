"""Where the images and labels of ImageNet may lie: in class folders, or in zips that are read in place.

A split is a folder (``train/n01440764/….JPEG``) or a zip of the same name with the same content
(``train.zip``), perhaps below a leading folder (``train/n01440764/….JPEG`` inside). A label is the position
of the class among the sorted classes. Labels may also stand in a text file with an image and a label a
line, and the images may then lie in one place: ``meta/train.txt``, or beside a zip ``train_map.txt``.
"""

import re
from pathlib import Path

from inline.datasets.zip_archive import ZipArchive

IMAGE_EXTENSIONS = ('.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif')
_SYNSET = re.compile(r'n\d{8}')


def is_synset(name: str) -> bool:
    """Whether a class is named as ImageNet names it."""
    return _SYNSET.fullmatch(name) is not None


def zip_of(folder: str | Path) -> Path | None:
    """The zip that stands in for a folder, if the folder is not there and the zip is."""
    folder = Path(folder)
    packed = folder.with_name(f'{folder.name}.zip')
    return packed if not folder.is_dir() and packed.is_file() else None


def map_of(packed: Path) -> Path | None:
    """The file of labels beside a zip, if it is there."""
    labels = packed.with_name(f'{packed.stem}_map.txt')
    return labels if labels.is_file() else None


def inner_root(archive: ZipArchive) -> str:
    """What stands before the class folders or the images inside a zip: '' or folders, with a slash."""
    root = ''
    while len(folders := archive.folders(root)) == 1 and not is_synset(folders[0]):
        root += f'{folders[0]}/'
    return root


def read_labels(path: str | Path) -> list[tuple[str, int]]:
    """Names and labels out of a text file, split at the last blank or tab of a line."""
    pairs = (line.rsplit(maxsplit=1) for line in Path(path).read_text().splitlines() if line.strip())
    return [(name, int(label)) for name, label in pairs]
