"""Pascal VOC annotations: one XML file per image.

Files may be in ``Annotations`` with the images in ``JPEGImages``, in ``annotations`` and ``images``, or next
to the images. The splits are folders or the lists in ``ImageSets/Main``.
"""

import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from inline.datasets.custom.annotated import UNKNOWN_SIZE, AnnotatedImage, Box, image_size
from inline.datasets.custom.layouts import find_files, find_images, is_hidden, read_lines, split_of
from inline.datasets.image_file import IMAGE_EXTENSIONS
from inline.utils.errors import UserError

# Folders of annotations, and of the images that belong to them.
_XML_FOLDERS = ('annotations', 'annotation', 'xml', 'xmls', 'labels')
_IMAGE_FOLDERS = ('jpegimages', 'images', 'image', 'imgs', 'img')
_LISTS = {'train': ('train', 'trainval'), 'val': ('val',), 'test': ('test',)}


def read_voc(root: Path, notes: list[str]) -> dict[str, list[AnnotatedImage]]:
    """Return the images by split, empty if there are no XML files; images without splits are in 'train'."""
    if not root.is_dir():
        return {}
    paths = [root / name for name in find_files(root, ('.xml',))]
    if not paths:
        return {}
    index = _ImageIndex(root)
    splits = _listed_splits(root, paths, notes) or _folder_splits(root, paths)
    images = {split: [index.read(path) for path in chosen] for split, chosen in splits.items()}
    unused = len(index.all_images()) - len(index.used)
    if unused > 0:
        notes.append(f'custom data: {unused:,} images without an XML file are not used')
    return images


def _folder_splits(root: Path, paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Group XML files by the folder in their path that is named after a split."""
    found: dict[str, list[Path]] = {}
    for path in paths:
        names = [split_of(name) for name in path.relative_to(root).parent.parts]
        found.setdefault(next(filter(None, names), 'train'), []).append(path)
    return {split: found[split] for split in ('train', 'val', 'test') if split in found}


def _listed_splits(root: Path, paths: Iterable[Path], notes: list[str]) -> dict[str, list[Path]]:
    """Group XML files by the lists in ImageSets/Main, or by train.txt and val.txt in `root`."""
    by_stem = {path.stem: path for path in paths}
    folder = next(
        (path for path in (root / 'ImageSets' / 'Main', root / 'ImageSets', root) if path.is_dir()), root
    )
    found: dict[str, list[Path]] = {}
    for split, names in _LISTS.items():
        path = next((folder / f'{name}.txt' for name in names if (folder / f'{name}.txt').is_file()), None)
        if path is None:
            continue
        # A line may be a path, and may have a second column.
        names_listed = [line.split()[0] for line in read_lines(path)]
        stems = [name if name in by_stem else Path(name).stem for name in names_listed]
        missing = [stem for stem in stems if stem not in by_stem]
        if missing and split == 'test':
            notes.append(f'custom data: {str(path)!r} lists images without annotations and is not used')
            continue
        if missing:
            raise UserError(f'{str(path)!r} lists {missing[0]!r}, but {missing[0]}.xml does not exist')
        found[split] = [by_stem[stem] for stem in stems]
    return found if 'train' in found or 'val' in found else {}


class _ImageIndex:
    """Finds the image of an XML file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.used: set[Path] = set()
        self._files = cache(self._list_files)

    def read(self, path: Path) -> AnnotatedImage:
        """Read an XML file; its boxes are changed from 1-based corners to COCO's left, top, width, height."""
        try:
            tree = ElementTree.parse(path).getroot()
        except (ElementTree.ParseError, OSError, ValueError) as error:
            raise UserError(f'{str(path)!r} is not valid XML: {error}') from error
        if tree.tag != 'annotation':
            raise UserError(f'{str(path)!r} is not a VOC annotation: the first element is <{tree.tag}>')
        file_name = (tree.findtext('filename') or '').strip()
        image = self._find(path, file_name)
        size = self._size(path, tree, image)
        boxes = [_read_object(path, number, node) for number, node in enumerate(tree.iter('object'), start=1)]
        self.used.add(image)
        return AnnotatedImage(image.relative_to(self.root).as_posix(), *size, boxes)

    def all_images(self) -> list[str]:
        return find_images(self.root)

    def _find(self, path: Path, file_name: str) -> Path:
        """Return the image that has the name of the XML file, or the name in it."""
        folders = list(_image_folders(path.parent, self.root))
        # Names in a file may contain a path of another machine, with any separator.
        written = file_name.replace('\\', '/').rpartition('/')[2]
        for folder in folders:
            files = self._files(folder)
            for stem in (path.stem, Path(written).stem, written):
                if stem in files:
                    return files[stem]
        # The loader reports missing images.
        return folders[-1] / (written if written.lower().endswith(IMAGE_EXTENSIONS) else f'{path.stem}.jpg')

    @staticmethod
    def _list_files(folder: Path) -> dict[str, Path]:
        if not folder.is_dir():
            return {}
        paths = sorted(folder.iterdir())
        images = [
            path for path in paths if path.suffix.lower() in IMAGE_EXTENSIONS and not is_hidden(path.name)
        ]
        return {path.stem: path for path in images}

    @staticmethod
    def _size(path: Path, tree: ElementTree.Element, image: Path) -> tuple[int, int]:
        try:
            width, height = (int(float(tree.findtext(f'size/{name}') or 0)) for name in ('width', 'height'))
        except ValueError as error:
            raise UserError(f'{str(path)!r} has an invalid size: {error}') from error
        if width > 0 and height > 0:
            return width, height
        size = image_size(image)
        if size == UNKNOWN_SIZE and not image.is_file():
            raise UserError(f'{str(path)!r} has no size, and its image {str(image)!r} does not exist')
        return size


def _image_folders(folder: Path, root: Path) -> Iterable[Path]:
    """Yield the folders that may hold the images of XML files in `folder`."""
    yield folder
    parts = folder.relative_to(root).parts
    for i, part in enumerate(parts):
        if part.lower() in _XML_FOLDERS:
            parent = root.joinpath(*parts[:i])
            rest = parts[i + 1 :]
            names = {path.name.lower(): path for path in parent.iterdir() if path.is_dir()}
            for name in _IMAGE_FOLDERS:
                if name in names:
                    yield names[name].joinpath(*rest)
                    yield names[name]
            yield parent


def _read_object(path: Path, number: int, node: ElementTree.Element) -> Box:
    name = (node.findtext('name') or '').strip()
    if not name:
        raise UserError(f'{str(path)!r}: object {number} has no name')
    corners = []
    for key in ('xmin', 'ymin', 'xmax', 'ymax'):
        text = node.findtext(f'bndbox/{key}')
        try:
            corners.append(float(text or ''))
        except ValueError:
            raise UserError(f'{str(path)!r}: object {number} has {key} {text!r}: must be a number') from None
    if not all(map(math.isfinite, corners)):
        raise UserError(f'{str(path)!r}: object {number} has bndbox {corners}: must be finite numbers')
    left, top, right, bottom = corners
    # As in mmdet's reader: coordinates start at 1, and difficult objects are ignored.
    xywh = [max(left - 1, 0), max(top - 1, 0), right - left, bottom - top]
    return Box(name, xywh, is_crowd=(node.findtext('difficult') or '0').strip() == '1')
