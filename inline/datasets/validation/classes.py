"""Checks of classification data before training: class folders and annotation files."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from inline.datasets.image_file import MMPRETRAIN_EXTENSIONS, file_name_error
from inline.datasets.zip_archive import ZipArchive, inner_root
from inline.utils.errors import UserError


def check_annotation_file(path: Path, num_classes: int, any_whitespace: bool = False) -> None:
    """Raise a :class:`UserError` unless every line is an image name, a space and a label.

    Args:
        path: The text file.
        num_classes: Number of classes of the config.
        any_whitespace: Whether a tab may separate name and label, and empty lines are skipped, as in the
            ``_map.txt`` next to a zip. mmpretrain's own annotation files allow neither.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'{str(path)!r} cannot be read: {error}') from error
    if not lines:
        raise UserError(f'{str(path)!r} is empty: must have one image name and label per line')
    for number, line in enumerate(lines, start=1):
        if any_whitespace and not line.strip():
            continue
        words = line.strip().rsplit(None if any_whitespace else ' ', 1)
        if len(words) != 2 or not words[1].removeprefix('-').isdecimal():
            raise UserError(f'{str(path)!r}, line {number}: {line!r} must be an image name and a label')
        if reason := file_name_error(words[0]):
            raise UserError(
                f'{str(path)!r}, line {number}: {words[0]!r} {reason}: must be a path inside the image folder'
            )
        if not 0 <= int(words[1]) < num_classes:
            raise UserError(
                f'{str(path)!r}, line {number}: label {words[1]} must be 0 to {num_classes - 1}, '
                f'because the config has {num_classes} classes'
            )


def check_class_folders(
    folder: Path, num_classes: int, require_images: bool, extensions: Iterable[str] = MMPRETRAIN_EXTENSIONS
) -> list[str]:
    """Check the class folders of a split and return their names, sorted; a label is an index into them.

    Args:
        folder: The folder of the split.
        num_classes: Number of classes of the config.
        require_images: Whether every class must have an image, as for training.
        extensions: File extensions of images.
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if not names:
        raise UserError(f'{str(folder)!r} has no class folders: images must be in one folder per class')
    _check_count(folder, names, num_classes)
    suffixes = tuple(extensions)
    empty = [name for name in names if not _has_image(folder / name, suffixes)]
    if empty and (require_images or len(empty) == len(names)):
        raise UserError(f'class folder {str(folder / empty[0])!r} has no images ({", ".join(suffixes)})')
    return names


def check_zip_folders(path: Path, num_classes: int) -> list[str]:
    """Return the names of the class folders in a zip; empty if the labels are in another file."""
    archive = ZipArchive(path)
    names = archive.folders(inner_root(archive))
    if names:
        _check_count(path, names, num_classes)
    return names


def check_same_classes(train: Sequence[str], val: Sequence[str], folder: Path) -> None:
    """Raise a :class:`UserError` if two splits have different class folders: their labels would differ."""
    different = sorted(set(train) ^ set(val))
    if different:
        where = 'not in the training split' if different[0] in val else 'only in the training split'
        raise UserError(
            f'class folder {different[0]!r} is {where}: {str(folder)!r} must have the same class folders'
        )


def _check_count(path: Path, names: Sequence[str], num_classes: int) -> None:
    if len(names) != num_classes:
        raise UserError(
            f'{str(path)!r} has {len(names)} class folders, but the config has {num_classes} classes'
        )


def _has_image(folder: str | Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether a folder or its subfolders have an image; stops at the first one."""
    subfolders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                subfolders.append(entry.path)
            elif entry.name.lower().endswith(suffixes):
                return True
    return any(_has_image(subfolder, suffixes) for subfolder in subfolders)
