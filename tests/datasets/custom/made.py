"""Small datasets in the layouts that people have, for tests of :mod:`inline.datasets.custom`.

Every writer creates a folder with `train` and `val` images (:data:`COUNTS`) and returns what ``--data-root``
gets. Pictures are noise with a bright rectangle per object, 64×48 pixels.
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

RANDOM = np.random.default_rng(0)
WIDTH, HEIGHT = 64, 48
COUNTS = {'train': 4, 'val': 2}
CLASSES = ('cat', 'dog')
# Left, top, width and height of the object of each class.
BOXES = {'cat': (8, 6, 20, 16), 'dog': (30, 20, 24, 20)}


def write_image(path: Path, array: np.ndarray | None = None, palette: Sequence[int] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if array is None:
        array = RANDOM.integers(0, 90, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        for i, (x, y, w, h) in enumerate(BOXES.values()):
            array[y : y + h, x : x + w, i] = 220
    image = Image.fromarray(array)
    if palette is not None:
        image.putpalette(list(palette))
    image.save(path)
    return path


def write_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(split: str) -> Iterator[str]:
    for i in range(COUNTS[split]):
        yield f'{split}_{i}'


# Classification.


def class_folders(root: Path, val: str = 'val') -> Path:
    for split, folder in (('train', 'train'), ('val', val)):
        for name in CLASSES:
            for stem in names(split):
                write_image(root / folder / name / f'{stem}.jpg')
    return root


def flat_folders(root: Path, count: int = 6) -> Path:
    for name in CLASSES:
        for i in range(count):
            write_image(root / name / f'{i}.png')
    return root


def csv_files(root: Path) -> Path:
    for split in COUNTS:
        rows = [('path', 'label')]
        for i, stem in enumerate(names(split)):
            write_image(root / 'pictures' / f'{stem}.png')
            rows.append((f'pictures/{stem}.png', CLASSES[i % 2]))
        with (root / f'{split}.csv').open('w', newline='') as file:
            csv.writer(file).writerows(rows)
    return root


# Detection.


def coco_tables(stems: Sequence[str], masks: bool = False) -> dict[str, Any]:
    annotations = []
    for image_id in range(1, len(stems) + 1):
        for category, (x, y, w, h) in enumerate(BOXES.values(), start=1):
            entry = {'id': len(annotations) + 1, 'image_id': image_id, 'category_id': category}
            entry |= {'bbox': [x, y, w, h], 'area': w * h, 'iscrowd': 0}
            if masks:
                entry['segmentation'] = [[x, y, x + w, y, x + w, y + h, x, y + h]]
            annotations.append(entry)
    return {
        'images': [
            {'id': i, 'file_name': f'{stem}.jpg', 'width': WIDTH, 'height': HEIGHT}
            for i, stem in enumerate(stems, start=1)
        ],
        'annotations': annotations,
        'categories': [{'id': i, 'name': name} for i, name in enumerate(CLASSES, start=1)],
    }


def coco(
    root: Path,
    file: str = 'annotations/instances_{}.json',
    folder: str = 'images/{}',
    change: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Path:
    for split in COUNTS:
        for stem in names(split):
            write_image(root / folder.format(split) / f'{stem}.jpg')
        tables = coco_tables(list(names(split)), masks=True)
        change(tables)
        write_text(root / file.format(split), json.dumps(tables))
    return root


def roboflow(root: Path) -> Path:
    """As Roboflow exports COCO: a category for the group, images next to the file, ids from 0, no area."""

    def change(tables: dict[str, Any]) -> None:
        tables['categories'].insert(0, {'id': 0, 'name': 'pets', 'supercategory': 'none'})
        for entry in tables['annotations']:
            entry['id'] -= 1
            entry['keypoints'] = [1, 2, 2]
            del entry['area'], entry['iscrowd']

    coco(root, '{}/_annotations.coco.json', '{}', change)
    (root / 'val').rename(root / 'valid')
    return root


def voc_xml(stem: str, objects: str | None = None, size: bool = True) -> str:
    if objects is None:
        objects = ''.join(
            f'<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{x + 1}</xmin>'
            f'<ymin>{y + 1}</ymin><xmax>{x + w + 1}</xmax><ymax>{y + h + 1}</ymax></bndbox></object>'
            for name, (x, y, w, h) in BOXES.items()
        )
    shape = f'<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>' if size else ''
    return f'<annotation><filename>{stem}.jpg</filename>{shape}{objects}</annotation>'


def voc(root: Path) -> Path:
    for split in COUNTS:
        for stem in names(split):
            write_image(root / 'JPEGImages' / f'{stem}.jpg')
            write_text(root / 'Annotations' / f'{stem}.xml', voc_xml(stem))
        write_text(root / 'ImageSets' / 'Main' / f'{split}.txt', '\n'.join(names(split)) + '\n')
    return root


def flat_voc(root: Path) -> Path:
    """`images` and `annotations` without splits, sizes only in the images."""
    for stem in [*names('train'), *names('val')]:
        write_image(root / 'images' / f'{stem}.png')
        write_text(root / 'annotations' / f'{stem}.xml', voc_xml(stem, size=False))
    return root


def yolo_lines(polygons: bool = False) -> str:
    lines = []
    for label, (x, y, w, h) in enumerate(BOXES.values()):
        corners = [x, y, x + w, y, x + w, y + h, x, y + h]
        numbers = corners if polygons else [x + w / 2, y + h / 2, w, h]
        scaled = [value / (HEIGHT if i % 2 else WIDTH) for i, value in enumerate(numbers)]
        lines.append(' '.join([str(label), *(f'{value:.6f}' for value in scaled)]))
    return '\n'.join(lines) + '\n'


def yolo(root: Path, polygons: bool = False, **description: Any) -> Path:
    """images/SPLIT and labels/SPLIT with a data.yaml, which is returned."""
    for split in COUNTS:
        for stem in names(split):
            write_image(root / 'images' / split / f'{stem}.jpg')
            write_text(root / 'labels' / split / f'{stem}.txt', yolo_lines(polygons))
    content = {'train': 'images/train', 'val': 'images/val', 'names': list(CLASSES), **description}
    return write_text(root / 'data.yaml', yaml.safe_dump(content))


# Segmentation.

LABELS = np.zeros((HEIGHT, WIDTH), np.uint8)
for _label, (_x, _y, _w, _h) in enumerate(BOXES.values(), start=1):
    LABELS[_y : _y + _h, _x : _x + _w] = _label
COLORS = {'sky': (128, 128, 128), 'road': (128, 64, 128), 'car': (64, 0, 128)}


def label_maps(
    root: Path,
    images: str = 'images/{}',
    labels: str = 'labels/{}',
    array: np.ndarray = LABELS,
    label_name: str = '{}.png',
    **options: Any,
) -> Path:
    for split in COUNTS:
        for stem in names(split):
            write_image(root / images.format(split) / f'{stem}.jpg')
            write_image(root / labels.format(split) / label_name.format(stem), array, **options)
    return root


def camvid(root: Path) -> Path:
    """`train` and `trainannot` with grey label maps; label 11 is void."""
    labels = LABELS.copy()
    labels[:2] = 11
    return label_maps(root, '{}', '{}annot', labels)


def color_coded(root: Path) -> Path:
    """CamVid's `train` and `train_labels` with colors, and its palette file."""
    colors = np.array(list(COLORS.values()), np.uint8)[LABELS]
    label_maps(root, '{}', '{}_labels', colors, '{}_L.png')
    lines = ['name,r,g,b', *(f'{name},{r},{g},{b}' for name, (r, g, b) in COLORS.items())]
    write_text(root / 'class_dict.csv', '\n'.join(lines) + '\n')
    return root


def binary_masks(root: Path) -> Path:
    """Images and masks of 0 and 255, in folders by split."""
    return label_maps(root, '{}/images', '{}/masks', np.where(LABELS > 0, 255, 0).astype(np.uint8))
