"""Annotated images, the common form of all detection formats, and writing them as standard COCO JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from inline.datasets.image_file import open_image, read_file
from inline.datasets.validation.coco import Tables
from inline.utils.atomic import atomic_write

# The EXIF orientation tag; values from 5 on swap width and height.
_ORIENTATION, _FIRST_TRANSPOSED = 0x0112, 5
# Placeholder for the size of an image that cannot be read: training skips it, testing stops.
UNKNOWN_SIZE = (640, 480)


@dataclass(frozen=True)
class Box:
    """An object.

    Attributes:
        label: Name of the class.
        xywh: Left, top, width and height in pixels.
        segmentation: Polygons or RLE as in COCO; None without a mask.
        area: In square pixels.
        is_crowd: Whether loss and metric ignore the object.
    """

    label: str
    xywh: list[float]
    segmentation: Any = None
    area: float | None = None
    is_crowd: bool = False


@dataclass(frozen=True)
class AnnotatedImage:
    """An image with its objects; `file_name` is relative to the folder of the images."""

    file_name: str
    width: int
    height: int
    boxes: list[Box] = field(default_factory=list)


def image_size(path: Path) -> tuple[int, int]:
    """Return width and height of an image as it is displayed, from its header.

    Returns :data:`UNKNOWN_SIZE` if the file cannot be read; the loader reports it.
    """
    try:
        with open_image(read_file(path)) as image:
            width, height = image.size
            transposed = image.getexif().get(_ORIENTATION, 1) >= _FIRST_TRANSPOSED
    except Exception:  # Decoders may raise any exception for damaged files.
        return UNKNOWN_SIZE
    return (height, width) if transposed else (width, height)


def image_sizes(paths: Sequence[Path]) -> list[tuple[int, int]]:
    """Return :func:`image_size` of many files."""
    with ThreadPoolExecutor() as pool:
        return list(tqdm(pool.map(image_size, paths), total=len(paths), desc='images', unit='image', delay=2))


def used_labels(images: Iterable[AnnotatedImage]) -> Counter[str]:
    """Count the objects of each class."""
    return Counter(box.label for image in images for box in image.boxes)


def have_masks(images: Iterable[AnnotatedImage]) -> bool:
    return all(box.segmentation for image in images for box in image.boxes)


def coco_tables(images: Sequence[AnnotatedImage], classes: Sequence[str]) -> Tables:
    """Return COCO tables with one category per class, in label order; other objects are left out."""
    # Ids start at 1: pycocotools counts matches with id 0 as missed objects.
    ids = {name: i for i, name in enumerate(classes, start=1)}
    annotations: list[dict[str, Any]] = []
    for image_id, image in enumerate(images, start=1):
        for box in image.boxes:
            if box.label not in ids:
                continue
            entry: dict[str, Any] = {
                'id': len(annotations) + 1,
                'image_id': image_id,
                'category_id': ids[box.label],
                'bbox': box.xywh,
                'area': box.xywh[2] * box.xywh[3] if box.area is None else box.area,
                'iscrowd': int(box.is_crowd),
            }
            if box.segmentation:
                entry['segmentation'] = box.segmentation
            annotations.append(entry)
    return {
        'images': [
            {'id': i, 'file_name': image.file_name, 'width': image.width, 'height': image.height}
            for i, image in enumerate(images, start=1)
        ],
        'annotations': annotations,
        'categories': [{'id': i, 'name': name} for name, i in ids.items()],
    }


def write_coco(path: Path, images: Sequence[AnnotatedImage], classes: Sequence[str]) -> None:
    atomic_write(path, json.dumps(coco_tables(images, classes)).encode())


def polygon_box(points: Sequence[float]) -> list[float]:
    """Return left, top, width and height of a polygon."""
    left, top = min(points[::2]), min(points[1::2])
    return [left, top, max(points[::2]) - left, max(points[1::2]) - top]
