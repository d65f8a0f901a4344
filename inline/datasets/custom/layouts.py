"""Shared by all readers of custom data: options, splits, held-out samples, and messages about a folder."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from inline.datasets.image_file import IMAGE_EXTENSIONS
from inline.datasets.validation.checks import CheckCache
from inline.utils.errors import UserError

# Names of the folders and files of a split, in any case.
SPLIT_NAMES = {
    'train': ('train', 'training', 'train2017'),
    'val': ('val', 'valid', 'validation', 'val2017', 'dev'),
    'test': ('test', 'testing', 'test2017'),
}
# Written by operating systems and network drives.
_SYSTEM_FOLDERS = ('__macosx', '@eadir')
_MAX_NAMES_SHOWN = 10

Sample = TypeVar('Sample')


@dataclass(frozen=True)
class ReadOptions:
    """How a dataset is read.

    Attributes:
        folder: Where lists and converted annotations are written.
        cache: Results of earlier starts of the run.
        phase: 'train' needs train and val, 'test' needs test or val, 'classes' needs no split.
        needs_val: Whether training evaluates.
        val_split: Fraction of the training samples to hold out; 1 to use all of them for testing.
        ignore_labels: Labels of pixels, or class names, that loss and metric ignore.
        model_classes: Class names of the checkpoint to test; empty if they are unknown.
        allow_other_classes: Whether the data may have other classes than the checkpoint.
    """

    folder: Path
    cache: CheckCache = field(default_factory=lambda: CheckCache(None))
    phase: str = 'train'
    needs_val: bool = True
    val_split: float | None = None
    ignore_labels: tuple[int | str, ...] = ()
    model_classes: tuple[str, ...] = ()
    allow_other_classes: bool = False


@dataclass(frozen=True)
class CustomData:
    """The properties of a dataset that a config needs.

    Attributes:
        layout: The format that was found.
        classes: Class names in label order.
        images: Number of images by split.
        dataset: Settings of the dataset config by split.
        objects: Number of boxes by split, for detection.
        has_masks: Whether all training objects have masks.
        notes: What was changed or ignored, one line each.
    """

    layout: str
    classes: tuple[str, ...]
    images: dict[str, int]
    dataset: dict[str, dict[str, Any]]
    objects: dict[str, int] = field(default_factory=dict)
    has_masks: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.classes:
            # Names are shown in logs and tables, and must stay as they are to match the annotations.
            if not str(name).isprintable():
                raise UserError(f'class name {str(name)!r} has control characters: rename the class')


def format_summary(data: CustomData) -> str:
    """Return the format, the splits with their images and objects, and the classes in one line."""
    splits = []
    for split, count in data.images.items():
        objects = f', {data.objects[split]:,} objects' if split in data.objects else ''
        splits.append(f'{split} {count:,} image{"s"[: count != 1]}{objects}')
    return (
        f'custom data: {data.layout}; {"; ".join(splits)}; '
        f'{len(data.classes)} class{"es"[: 2 * (len(data.classes) != 1)]} ({format_names(data.classes)})'
    )


def format_names(names: Sequence[Any], shown: int = _MAX_NAMES_SHOWN) -> str:
    return ', '.join(str(name) for name in names[:shown]) + (', …' if len(names) > shown else '')


def is_hidden(name: str) -> bool:
    return name.startswith('.') or name.lower() in _SYSTEM_FOLDERS


def visible_folders(folder: Path) -> list[Path]:
    """Return the subfolders, including links, sorted by name."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not is_hidden(path.name) and path.is_dir())


def find_files(folder: Path, extensions: Sequence[str]) -> Iterator[str]:
    """Yield the files with some extensions at any depth, relative to `folder` and sorted; follow links."""
    suffixes = tuple(extensions)
    found, visited = [], set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:
            # Following a link to a parent folder would never end.
            folders.clear()
            continue
        visited.add(real)
        folders[:] = [name for name in folders if not is_hidden(name)]
        inner = Path(parent).relative_to(folder)
        found += [
            (inner / name).as_posix()
            for name in names
            if not is_hidden(name) and name.lower().endswith(suffixes)
        ]
    yield from sorted(found)


def find_images(folder: Path) -> list[str]:
    return list(find_files(folder, IMAGE_EXTENSIONS))


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not empty, without a byte order mark."""
    try:
        text = path.read_text(encoding='utf-8-sig')
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'{str(path)!r} cannot be read: {error}') from error
    return [line for line in text.splitlines() if line.strip()]


def split_of(name: str) -> str | None:
    """Return the split that a folder or the stem of a file is named after."""
    return next((split for split, names in SPLIT_NAMES.items() if name.lower() in names), None)


def split_folders(root: Path) -> dict[str, Path]:
    """Return the subfolders that are named after a split."""
    found: dict[str, Path] = {}
    for path in visible_folders(root):
        split = split_of(path.name)
        if split is not None:
            found.setdefault(split, path)
    return {split: found[split] for split in SPLIT_NAMES if split in found}


def find_named(root: Path, names: Iterable[str]) -> Path | None:
    """Return the first of some files or folders that exists in `root`, ignoring case."""
    if not root.is_dir():
        return None
    present = {path.name.lower(): path for path in sorted(root.iterdir(), reverse=True)}
    return next((present[name.lower()] for name in names if name.lower() in present), None)


def hold_out(
    samples: Sequence[Sample],
    fraction: float,
    key: Callable[[Sample], str],
    group: Callable[[Sample], str] = lambda _: '',
) -> tuple[list[Sample], list[Sample]]:
    """Divide samples into a part to train on and a part to validate on.

    The choice depends on the names of the samples alone, so it is the same in every run, on every machine and
    for every order of the files. Every group, such as a class, is divided in the same proportion.

    Args:
        samples: All samples.
        fraction: Part of the samples to validate on, between 0 and 1.
        key: The name of a sample.
        group: The group of a sample.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(group(sample), []).append(sample)
    held_out = set()
    for members in groups.values():
        members.sort(key=lambda sample: hashlib.sha256(key(sample).encode()).hexdigest())
        # At least one of each group stays in training, and one is held out if there are two.
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        held_out |= {key(sample) for sample in members[:count]}
    train = [sample for sample in samples if key(sample) not in held_out]
    return train, [sample for sample in samples if key(sample) in held_out]


def complete_splits(
    splits: dict[str, list[Sample]],
    root: Path,
    options: ReadOptions,
    key: Callable[[Sample], str],
    group: Callable[[Sample], str] = lambda _: '',
) -> dict[str, list[Sample]]:
    """Apply ``val_split``, and raise a :class:`UserError` if the run needs a split that is missing.

    Args:
        splits: Samples by split. Data without splits is all in 'train'.
        root: For messages.
        options: Of the reader.
        key, group: As in :func:`hold_out`.
    """
    check_splits(splits, root, options)
    fraction = options.val_split
    if fraction is None or 'train' not in splits:
        return splits
    train = splits['train']
    others = {split: samples for split, samples in splits.items() if split != 'train'}
    if fraction == 1:
        return {'val': train, **others}
    train, val = hold_out(train, fraction, key, group)
    if not val:
        raise UserError(f'--val-split {fraction}: {str(root)!r} has too few images to hold out any')
    return {'train': train, 'val': val, **others}


def check_splits(splits: Iterable[str], root: Path, options: ReadOptions) -> None:
    """Raise a :class:`UserError` if ``val_split`` cannot be used, or a split is missing without it."""
    found, fraction = list(splits), options.val_split
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise UserError(
                f'--val-split {fraction}: must be above 0 and below 1, or 1 to test on all images'
            )
        if 'val' in found:
            raise UserError(f'--val-split {fraction}: {str(root)!r} already has a val split; omit the flag')
    if options.phase == 'train':
        if 'train' not in found:
            raise UserError(
                f'{str(root)!r} has no train split, only {" and ".join(found)}: '
                'this is enough for tools/test.py, but not for training'
            )
        if fraction == 1:
            raise UserError('--val-split 1 leaves no image to train on: must be below 1')
        if fraction is None and options.needs_val and not {'val', 'test'} & set(found):
            raise UserError(
                f'{str(root)!r} has no val split: hold out part of the images with --val-split 0.1, '
                'or train with --no-validate'
            )
    elif options.phase == 'test' and fraction is None and not {'val', 'test'} & set(found):
        raise UserError(
            f'{str(root)!r} has no val or test split: give --val-split as in training to test on the images '
            'that were held out, or --val-split 1 to test on all of them'
        )


def resolve_classes(found: Sequence[str], options: ReadOptions) -> tuple[str, ...]:
    """Return the label order to use: the data's, or that of the checkpoint to test if it has more classes.

    Raises:
        UserError: The names or their order differ from those of the checkpoint.
    """
    names = options.model_classes
    if not names or tuple(found) == names:
        return tuple(found)
    if [name for name in names if name in found] == list(found):
        # The test data lacks some classes.
        return names
    if not options.allow_other_classes:
        raise other_classes_error(names, found)
    if set(found) <= set(names):
        # Only the order differs, and every format gives the class name of a label.
        return names
    if len(found) > len(names):
        raise UserError(
            f'--allow-other-classes: the data has {len(found)} classes, more than the {len(names)} '
            'of the checkpoint'
        )
    # Labels without a class in the data keep a name, because metrics list all of them.
    rest = [name if name not in found else f'{name} (checkpoint)' for name in names[len(found) :]]
    return (*found, *rest)


def other_classes_error(names: Sequence[str], found: Sequence[str]) -> UserError:
    """Return the error for data with other classes than those that a checkpoint was trained on."""
    what = 'in a different order' if sorted(names) == sorted(found) else 'with different names'
    return UserError(
        f'the checkpoint and the data have classes {what}: checkpoint: {format_names(names, 50)}; '
        f'data: {format_names(found, 50)} (--allow-other-classes accepts this)'
    )


def enter_wrapper(root: Path) -> Path:
    """Return the only folder in `root` at any depth, as in an unpacked archive, or `root` itself."""
    while root.is_dir():
        entries = [path for path in root.iterdir() if not is_hidden(path.name)]
        if len(entries) != 1 or not entries[0].is_dir() or split_of(entries[0].name):
            break
        if not visible_folders(entries[0]):
            break
        root = entries[0]
    return root


def describe_folder(root: Path) -> str:
    """List the subfolders and count the files by extension, for an error message."""
    if root.is_file():
        return f'a {root.suffix or "plain"} file'
    folders = [path.name for path in visible_folders(root)]
    suffixes = Counter(
        path.suffix.lower() or path.name
        for path in root.iterdir()
        if path.is_file() and not is_hidden(path.name)
    )
    files = [f'{count:,} {suffix} file{"s"[: count > 1]}' for suffix, count in suffixes.most_common(5)]
    found = [f'folders {format_names(folders)}'] if folders else []
    return '; '.join([*found, *files]) or 'nothing'


@dataclass(frozen=True)
class Layout:
    """A dataset format, for suggestions if no format matches.

    Attributes:
        name: Of the format.
        parts: Its parts, each with a predicate for a folder.
    """

    name: str
    parts: tuple[tuple[str, Callable[[Path], bool]], ...]


class UnknownLayoutError(UserError):
    """A folder that has none of the layouts of a task."""


def unknown_layout_error(root: Path, layouts: Sequence[Layout]) -> UnknownLayoutError:
    """Return an error that lists the content of a folder and the closest layout."""

    def missing(layout: Layout) -> list[str]:
        return [part for part, is_present in layout.parts if not is_present(root)]

    nearest = min(layouts, key=lambda layout: len(missing(layout)) / len(layout.parts))
    names = ', '.join(layout.name for layout in layouts)
    lacking = missing(nearest)
    verdict = f'which lacks {" and ".join(lacking)}' if lacking else 'but its files do not match each other'
    return UnknownLayoutError(
        f'{str(root)!r} has none of the layouts {names}. Found: {describe_folder(root)}. '
        f'Nearest: {nearest.name}, {verdict}'
    )


def has_files(*extensions: str) -> Callable[[Path], bool]:
    """Return a predicate: whether a folder has a file with one of these extensions at any depth."""
    return lambda root: next(find_files(root, extensions), None) is not None


def has_named(*names: str) -> Callable[[Path], bool]:
    """Return a predicate: whether a folder has a file or folder with one of these names."""
    return lambda root: find_named(root, names) is not None
