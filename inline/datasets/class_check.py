"""Checking the classes of a data set before training: folders of classes, and lists of labels."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from inline.datasets.imagenet_layout import IMAGE_EXTENSIONS, inner_root
from inline.datasets.zip_archive import ZipArchive
from inline.errors import UserError


def check_list(path: Path, num_classes: int, separator: str | None = ' ') -> None:
    """Refuse a list of images and labels with a line that is none: a name, a blank and a number.

    With None for `separator` a tab will do as well, and empty lines are left out.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'{str(path)!r} cannot be read: {error}') from error
    if not lines:
        raise UserError(f'{str(path)!r} is empty: must have an image and its label a line')
    for number, line in enumerate(lines, start=1):
        if separator is None and not line.strip():
            continue
        words = line.strip().rsplit(separator, 1)
        if len(words) != 2 or not _is_whole(words[1]):
            raise UserError(f'{str(path)!r}, line {number}: {line!r} must be an image and its label')
        if not 0 <= int(words[1]) < num_classes:
            raise UserError(
                f'{str(path)!r}, line {number}: label {words[1]}, and the config has {num_classes} classes: '
                f'must be 0 to {num_classes - 1}'
            )


def check_folders(
    folder: Path, num_classes: int, needs_all: bool, extensions: Iterable[str] = IMAGE_EXTENSIONS
) -> list[str]:
    """The class folders of a split. A label is the position of its folder, so all must be there.

    Args:
        folder: The folder of the split.
        num_classes: How many classes the config has.
        needs_all: Whether each class must have an image, as in training.
        extensions: How the names of images end.
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if not names:
        raise UserError(f'{str(folder)!r} has no folders: images belong into a folder for each class')
    check_number(folder, names, num_classes)
    endings = tuple(extensions)
    empty = [name for name in names if not _has_image(folder / name, endings)]
    if empty and (needs_all or len(empty) == len(names)):
        raise UserError(
            f'class folder {str(folder / empty[0])!r} has no images, that is {", ".join(endings)}'
        )
    return names


def zip_folders(packed: Path, num_classes: int) -> list[str]:
    """The class folders inside a zip, which holds no empty ones; empty if labels stand elsewhere."""
    archive = ZipArchive(packed)
    names = archive.folders(inner_root(archive))
    if names:
        check_number(packed, names, num_classes)
    return names


def check_number(where: Path, names: Sequence[str], num_classes: int) -> None:
    if len(names) != num_classes:
        raise UserError(
            f'{str(where)!r} has {len(names)} class folders, and the config has {num_classes} classes'
        )


def check_same(train: Sequence[str], val: Sequence[str], where: Path) -> None:
    """Refuse splits whose class folders differ: the same label would be of another class."""
    differing = sorted(set(train) ^ set(val))
    if differing:
        place = 'not in that of training' if differing[0] in set(val) else 'only in that of training'
        raise UserError(
            f'class folder {differing[0]!r} is {place}: {str(where)!r} must have the same classes'
        )


def _has_image(folder: Path, endings: tuple[str, ...]) -> bool:
    return any(path.name.lower().endswith(endings) for path in folder.rglob('*'))


def _is_whole(word: str) -> bool:
    return word.removeprefix('-').isdecimal()
