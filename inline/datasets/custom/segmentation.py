"""Images with label maps: assignment of classes to the values or colors of indexed, grey and RGB PNGs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from inline.datasets.custom.annotated import UNKNOWN_SIZE, image_size
from inline.datasets.custom.layouts import (
    CustomData,
    ReadOptions,
    complete_splits,
    format_names,
    resolve_classes,
    unknown_layout_error,
)
from inline.datasets.custom.pairs import LAYOUTS, find_pairs
from inline.datasets.custom.palettes import ClassTable, read_class_table
from inline.datasets.image_file import failure_reason, open_image, read_file
from inline.datasets.loading import IGNORE_INDEX, format_stored, pack_colors
from inline.utils.atomic import atomic_write
from inline.utils.drawing import class_palette
from inline.utils.errors import UserError


def read_segmentation(root: Path, options: ReadOptions) -> CustomData:
    """Read images and label maps; 255 and `ignore_labels` are ignored, 0 and 255 alone are two classes."""
    if not root.is_dir():
        raise UserError(f'data {str(root)!r}: segmentation needs a folder')
    found = find_pairs(root)
    if not found:
        raise unknown_layout_error(root, LAYOUTS)
    table = read_class_table(root)
    splits = complete_splits(found, root, options, key=lambda pair: pair.image)
    paths = {split: [(root / a, root / b) for a, b in pairs] for split, pairs in splits.items()}
    is_color = _is_color_coded(paths, table)
    stored = {
        split: _merge(
            options.cache.get(count_values, [path for pair in pairs for path in pair], pairs, is_color)
        )
        for split, pairs in paths.items()
    }
    classes = _assign_classes(stored, table, is_color, options, root)
    notes = list(classes.notes)
    names = resolve_classes(classes.names, options)
    # In a checkpoint with more classes, the same names have other indices.
    index = {i: names.index(name) for i, name in enumerate(classes.names)} | {IGNORE_INDEX: IGNORE_INDEX}
    values = {value: index[i] for value, i in classes.values.items()}
    first = next(iter(paths.values()))[0][1]
    palette = _palette(first, classes, len(names))
    settings = {}
    for split, pairs in splits.items():
        path = options.folder / f'{split}.txt'
        atomic_write(path, ''.join(f'{pair.image}\t{pair.label_map}\n' for pair in pairs).encode())
        settings[split] = {
            'type': 'inline.ImagePairs',
            'data_root': str(root),
            'data_prefix': {},
            'ann_file': str(path),
            'metainfo': {'classes': list(names), 'palette': palette},
            'label_values': _table_of(values, is_color),
            'color_coded': is_color,
        }
    kind = 'color-coded label maps' if is_color else 'label maps'
    images = {split: len(pairs) for split, pairs in splits.items()}
    return CustomData(f'images and {kind}', names, images, settings, notes=tuple(notes))


def _is_color_coded(paths: Mapping[str, Sequence[tuple[Path, Path]]], table: ClassTable) -> bool:
    """Return whether colors are classes; an indexed PNG may also have the colors of the palette file."""
    _, path = next(iter(paths.values()))[0]
    try:
        with open_image(read_file(path)) as image:
            if image.mode in ('RGB', 'RGBA'):
                return True
            if image.mode != 'P' or not table.colors:
                return False
            colors = np.unique(pack_colors(image))
            indices = np.unique(np.asarray(image))
    except Exception as error:  # Decoders may raise any exception for damaged files.
        raise UserError(f'label map {str(path)!r} cannot be read: {failure_reason(error)}') from error
    listed = [_packed(color) for color in table.colors]
    return set(colors.tolist()) <= set(listed) and indices.max() < IGNORE_INDEX


def _packed(color: tuple[int, int, int]) -> int:
    return color[0] << 16 | color[1] << 8 | color[2]


def count_values(pairs: Sequence[tuple[Path, Path]], is_color: bool) -> list[list[Any]]:
    """Check all label maps and count their values.

    Returns:
        Rows of a value, the number of its pixels and a file that has it, sorted by value.
    """

    def count(pair: tuple[Path, Path]) -> dict[float, int]:
        values, size = _read_values(pair[1], is_color)
        expected = image_size(pair[0])
        # The loader reports images that cannot be read.
        if expected not in (size, UNKNOWN_SIZE):
            raise UserError(
                f'label map {str(pair[1])!r} is {size[0]}x{size[1]} pixels, '
                f'but its image is {expected[0]}x{expected[1]}'
            )
        return values

    with ThreadPoolExecutor() as pool:
        counts = list(tqdm(pool.map(count, pairs), total=len(pairs), desc='label maps', unit='map', delay=2))
    total: Counter[float] = Counter()
    files: dict[float, str] = {}
    for pair, found in zip(pairs, counts, strict=True):
        total.update(found)
        for value in found:
            files.setdefault(value, str(pair[1]))
    return [[value, total[value], files[value]] for value in sorted(total)]


def _read_values(path: Path, is_color: bool) -> tuple[dict[float, int], tuple[int, int]]:
    try:
        with open_image(read_file(path)) as image:
            if image.format == 'JPEG':
                raise UserError(f'label map {str(path)!r} is a JPEG, which changes labels: must be a PNG')
            stored = pack_colors(image) if is_color else np.asarray(image)
            size = image.size
    except UserError:
        raise
    except Exception as error:  # Decoders may raise any exception for damaged files.
        raise UserError(f'label map {str(path)!r} cannot be read: {failure_reason(error)}') from error
    if stored.ndim != 2:
        raise UserError(
            f'label map {str(path)!r} has {stored.shape[-1]} channels: must be one, like the first map'
        )
    if stored.dtype == np.uint8:
        # Faster than sorting.
        pixels = np.bincount(stored.reshape(-1), minlength=256)
        return {int(value): int(pixels[value]) for value in np.flatnonzero(pixels)}, size
    values, counts = np.unique(stored, return_counts=True)
    return {value.item(): int(count) for value, count in zip(values, counts, strict=True)}, size


Stored = dict[int, tuple[int, str]]


def _merge(rows: Sequence[Sequence[Any]]) -> Stored:
    """Return the number of pixels and a file by value."""
    for value, _, path in rows:
        if not float(value).is_integer() or value < 0:
            raise UserError(f'label map {path!r} has label {value:g}: must be an integer from 0')
    return {int(value): (count, path) for value, count, path in rows}


@dataclass(frozen=True)
class _Classes:
    """Class names, the class index of each stored value, and colors by class if they are known."""

    names: tuple[str, ...]
    values: dict[int, int]
    colors: tuple[tuple[int, int, int], ...] = ()
    notes: tuple[str, ...] = ()


def _assign_classes(
    stored: Mapping[str, Stored], table: ClassTable, is_color: bool, options: ReadOptions, root: Path
) -> _Classes:
    """Assign a class to each stored value."""
    files = {value: path for split in stored.values() for value, (_, path) in split.items()}
    shown: Callable[[int], str] = lambda value: format_stored(value, is_color)  # noqa: E731
    colors = [_packed(color) for color in table.colors] if is_color else []
    is_gray = is_color and all(value % 0x010101 == 0 for value in files)
    if is_color and not colors and not is_gray:
        raise UserError(
            f'label map {next(iter(files.values()))!r} is color-coded, with '
            f'{format_names([shown(value) for value in files], 4)}: '
            f'name the color of each class in {str(root / "class_dict.csv")!r}, with lines name,r,g,b'
        )
    if is_color and not colors:
        # Grey values saved as RGB.
        values = sorted(files)
        labels = {value: value & 255 for value in values}
    elif is_color:
        labels = {color: i for i, color in enumerate(colors)}
        other = [value for value in files if value not in labels]
        if other:
            raise UserError(
                f'label map {files[other[0]]!r} has {shown(other[0])}, which is not in {table.path}: '
                'add it, with the name of its class'
            )
    else:
        labels = {value: value for value in files}
    return _named(stored, table, labels, options, root)


def _named(
    stored: Mapping[str, Stored], table: ClassTable, labels: dict[int, int], options: ReadOptions, root: Path
) -> _Classes:
    """Number the classes from 0, without those that are ignored; `labels` has the label of each value."""
    files = {labels[value]: path for split in stored.values() for value, (_, path) in split.items()}
    notes = []
    ignored = _ignored_labels(options.ignore_labels, table, files, root)
    is_binary = set(files) == {0, IGNORE_INDEX} and IGNORE_INDEX not in ignored
    if is_binary:
        notes.append('custom data: the label maps are binary masks: 0 is class 0 and 255 is class 1')
        labels = {value: int(label == IGNORE_INDEX) for value, label in labels.items()}
        files = {int(label == IGNORE_INDEX): path for label, path in files.items()}
    elif not table.colors:
        ignored.add(IGNORE_INDEX)
    used = sorted(label for label in files if label not in ignored)
    if table.names:
        outside = [label for label in used if label >= len(table.names)]
        if outside:
            raise UserError(
                f'label {outside[0]} in {files[outside[0]]!r}: {table.path and table.path.name} has '
                f'{len(table.names)} classes, so labels must be 0 to {len(table.names) - 1}, '
                f'or {IGNORE_INDEX} to ignore a pixel (--ignore-label {outside[0]} ignores this one)'
            )
        kept = [label for label in range(len(table.names)) if label not in ignored]
        _check_present(kept, stored, labels, table)
    else:
        kept = used
    if len(kept) < 2:
        what = f'only {format_names([f"label {label}" for label in kept])}' if kept else 'no label'
        raise UserError(
            f'the label maps of {str(root)!r} have {what}'
            f'{f" besides ignored pixels ({format_names(sorted(ignored))})" if ignored else ""}: '
            'at least two classes are required'
        )
    if kept != list(range(len(kept))):
        notes.append(f'custom data: labels {format_names(kept)} become classes 0 to {len(kept) - 1}')
    names = tuple(table.names[label] if table.names else f'class {label}' for label in kept)
    index = {label: i for i, label in enumerate(kept)}
    colors = tuple(table.colors[label] for label in kept) if table.colors else ()
    values = {value: index.get(label, IGNORE_INDEX) for value, label in labels.items()}
    return _Classes(names, values, colors, tuple(notes))


def _ignored_labels(
    wanted: Sequence[int | str], table: ClassTable, files: Mapping[int, str], root: Path
) -> set[int]:
    ignored = set()
    for label in wanted:
        if isinstance(label, str) and label not in table.names:
            raise UserError(
                f'--ignore-label {label!r}: no class has this name; '
                f'{format_names(table.names) if table.names else "the classes have no names"}'
            )
        number = table.names.index(label) if isinstance(label, str) else label
        if number not in files and number >= len(table.names):
            raise UserError(
                f'--ignore-label {label}: no label map of {str(root)!r} has it; '
                f'found {format_names(sorted(files), 30)}'
            )
        ignored.add(number)
    return ignored


def _check_present(
    kept: Sequence[int], stored: Mapping[str, Stored], labels: Mapping[int, int], table: ClassTable
) -> None:
    """Raise a :class:`UserError` if a named class has no pixel to learn from."""
    leading = stored.get('train') or {value: one for split in stored.values() for value, one in split.items()}
    present = {labels[value] for value in leading}
    absent = [table.names[label] for label in kept if label not in present]
    if absent and 'train' in stored:
        flag = ' '.join(repr(name) if ' ' in name else name for name in absent)
        raise UserError(
            f'{len(absent)} of {len(kept)} classes of {str(table.path)!r} have no pixels in train: '
            f'{format_names(absent)}; exclude them with --ignore-label {flag}'
        )


def _table_of(values: Mapping[int, int], is_color: bool) -> list[list[int]] | None:
    """Return the pairs of stored value and class, or None if label maps store the classes themselves."""
    if not is_color and all(value == index for value, index in values.items()):
        return None
    return [[value, index] for value, index in sorted(values.items())]


def _palette(label_map: Path, classes: _Classes, num_classes: int) -> list[list[int]]:
    """Return the colors of the palette file, those stored in a label map, or default ones."""
    if len(classes.colors) == num_classes:
        return [list(color) for color in classes.colors]
    with open_image(read_file(label_map)) as image:
        stored = image.getpalette() if image.mode == 'P' else None
    if stored and len(stored) >= 3 * num_classes:
        return [stored[3 * i : 3 * i + 3] for i in range(num_classes)]
    return [list(color) for color in class_palette(num_classes)]
