"""Datasets of the user: reading classes, counts and paths from the data, and fitting a config to them.

The configs in ``configs/finetune/`` name one of three formats in ``custom_data``; see :data:`READERS`.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.dist import is_main_process
from tqdm import tqdm

from inline.datasets.image_file import IMAGE_EXTENSIONS, failure_reason, open_image, read_file
from inline.datasets.loading import IGNORE_INDEX
from inline.datasets.validation.checks import CheckCache, type_name
from inline.datasets.validation.coco import read_coco
from inline.engine.distributed.setup import call_on_rank_zero
from inline.utils.drawing import class_palette
from inline.utils.errors import UserError
from inline.utils.nested import leaf_datasets, walk_dicts

SPLITS = ('train', 'val')
# Common locations of the annotations and images of a split, in the order of the search.
_COCO_FILES = (
    '{split}.json',
    'annotations/{split}.json',
    'annotations/instances_{split}.json',
    'annotations/instances_{split}2017.json',
    '{split}/_annotations.coco.json',
)
_COCO_FOLDERS = ('{split}', 'images/{split}', '{split}2017', 'images', '.')
_SPLIT_NAMES = {'train': ('train', 'training'), 'val': ('val', 'validation', 'valid')}
_IMAGE_FOLDERS, _LABEL_FOLDERS = ('images', 'img'), ('labels', 'annotations', 'masks')
# Dataloaders and the split that each of them reads.
_DATALOADERS = (('train_dataloader', 'train'), ('val_dataloader', 'val'), ('test_dataloader', 'val'))
_MAX_NAMES_SHOWN = 10


@dataclass(frozen=True)
class CustomData:
    """What a config must know about a dataset.

    Attributes:
        classes: Class names in label order.
        counts: Number of images by split.
        dataset: Settings of the dataset config by split.
        has_masks: Whether all training objects have masks.
    """

    classes: tuple[str, ...]
    counts: dict[str, int]
    dataset: dict[str, dict[str, Any]]
    has_masks: bool = False

    def __post_init__(self) -> None:
        for name in self.classes:
            # Names are shown in logs and tables, and must stay as they are to match the annotations.
            if not str(name).isprintable():
                raise UserError(f'class name {str(name)!r} has control characters: rename the class')


def fit_to_custom_data(cfg: Config, cache: CheckCache | None = None) -> None:
    """Set classes, paths and palette of a config from its data, if it has the key ``custom_data``.

    Rank 0 reads the data. A config that is already fitted, such as one saved by a run, is fitted again.

    Args:
        cfg: The config, changed in place.
        cache: Results of an earlier start of the run; by default nothing is cached.
    """
    if 'custom_data' not in cfg:
        return
    if cfg.custom_data not in READERS:
        raise UserError(f'custom_data {cfg.custom_data!r} in the config: must be one of {", ".join(READERS)}')
    datasets = [
        (split, dataset)
        for loader, split in _DATALOADERS
        for dataset in leaf_datasets((cfg.get(loader) or {}).get('dataset'))
    ]
    if not datasets:
        raise UserError('the config has custom_data but no dataset')
    root = Path(datasets[0][1]['data_root'])
    data = call_on_rank_zero(lambda: READERS[cfg.custom_data](root, cache or CheckCache(None)), cfg)
    trains_masks = any(step.get('with_mask') for _, step in walk_dicts(cfg.get('train_dataloader')))
    if trains_masks and not data.has_masks:
        raise UserError(
            f'{str(root)!r} has annotations without a segmentation, but the config trains masks: '
            'use a config for boxes, such as configs/finetune/retinanet_inline-pvt-tiny_coco-format.py'
        )
    for _, node in walk_dicts([cfg.model, cfg.get('data_preprocessor')]):
        if 'num_classes' in node:
            node['num_classes'] = len(data.classes)
    for split, dataset in datasets:
        dataset.update(ConfigDict(data.dataset[split]))
    for _, node in walk_dicts([cfg.get('val_evaluator'), cfg.get('test_evaluator')]):
        if type_name(node) == 'CocoMetric':
            node['ann_file'] = str(root / data.dataset['val']['ann_file'])
    if is_main_process():
        print(format_summary(data), flush=True)


def format_summary(data: CustomData) -> str:
    """Return the classes and image counts in one line."""
    more = ', …' if len(data.classes) > _MAX_NAMES_SHOWN else ''
    names = ', '.join(data.classes[:_MAX_NAMES_SHOWN]) + more
    counts = f'{data.counts["train"]:,} training and {data.counts["val"]:,} validation images'
    return f'custom data: {counts}, {len(data.classes)} classes ({names})'


def read_image_folder(root: Path, cache: CheckCache) -> CustomData:  # noqa: ARG001 (the readers' signature)
    """Read images in ``train/CLASS/…`` and ``val/CLASS/…``; the classes are the sorted training folders."""
    _check_root(root)
    counts: dict[str, Counter[str]] = {}
    for split in SPLITS:
        folder = root / split
        if not folder.is_dir():
            raise UserError(
                f'{str(root)!r} has no folder {split!r}: images must be in train/CLASS/ and val/CLASS/'
            )
        # Not cached: to see whether a file was added takes the same listing.
        folders = (path for path in folder.iterdir() if path.is_dir())
        counts[split] = Counter({path.name: n for path in folders if (n := _count_images(path))})
        if not counts[split]:
            raise UserError(f'{str(folder)!r} has no images in class folders: must be CLASS/*.jpg')
    for name in sorted(counts['val'].keys() - counts['train'].keys()):
        raise UserError(f'class {name!r} is in {str(root / "val")!r} but not in {str(root / "train")!r}')
    classes = sorted(counts['train'])
    # By default mmpretrain silently ignores some of the images that are counted here, such as .webp.
    settings = {'classes': classes, 'extensions': list(IMAGE_EXTENSIONS)}
    totals = {split: counts[split].total() for split in SPLITS}
    return CustomData(tuple(classes), totals, dict.fromkeys(SPLITS, settings))


def read_coco_format(root: Path, cache: CheckCache) -> CustomData:
    """Read boxes and optional masks; classes are the categories of training annotations, in file order."""
    _check_root(root)
    files, summaries = {}, {}
    for split in SPLITS:
        candidates = (name.format(split=split) for name in _COCO_FILES)
        files[split] = _find(root, candidates, f'annotations of {split}')
        path = root / files[split]
        summaries[split] = cache.get(_summarize_coco, [path], path)
    classes = summaries['train']['classes']
    if not classes:
        raise UserError(f'{str(root / files["train"])!r} has no annotation of any of its categories')
    settings = {
        split: {
            # Checkpoints contain the ids, for predictions in COCO's format.
            'metainfo': {'classes': classes, 'category_ids': summaries['train']['category_ids']},
            'ann_file': files[split],
            'data_prefix': {'img': _find_image_folder(root, split, summaries[split], files[split])},
        }
        for split in SPLITS
    }
    counts = {split: summaries[split]['num_images'] for split in SPLITS}
    return CustomData(tuple(classes), counts, settings, summaries['train']['has_masks'])


def read_label_maps(root: Path, cache: CheckCache) -> CustomData:
    """Read images and label maps of the same names; a pixel of a label map is a class index or 255.

    Class names come from ``classes.txt``, one per line. Without it, classes are numbered.
    """
    _check_root(root)
    image_folders, label_folders = (
        {
            split: _find(
                root,
                (f'{parent}/{name}' for parent in parents for name in _SPLIT_NAMES[split]),
                f'{what} of {split}',
            )
            for split in SPLITS
        }
        for parents, what in ((_IMAGE_FOLDERS, 'images'), (_LABEL_FOLDERS, 'label maps'))
    )
    image_suffix = _common_suffix(root, image_folders.values())
    label_suffix = _common_suffix(root, label_folders.values())
    label_maps, counts = [], {}
    for split in SPLITS:
        names = sorted(path.stem for path in (root / image_folders[split]).glob(f'*{image_suffix}'))
        labels = {path.stem: path for path in (root / label_folders[split]).glob(f'*{label_suffix}')}
        missing = [name for name in names if name not in labels]
        if missing:
            raise UserError(
                f'{len(missing)} images of {str(root / image_folders[split])!r} have no label map in '
                f'{label_folders[split]}; the first is {missing[0] + image_suffix!r}'
            )
        label_maps += [labels[name] for name in names]
        counts[split] = len(names)
    highest, path = cache.get(_highest_label, label_maps, label_maps)
    classes = _class_names(root / 'classes.txt', highest, path)
    settings = {
        split: {
            'metainfo': {'classes': list(classes), 'palette': _palette(label_maps[0], len(classes))},
            'data_prefix': {'img_path': image_folders[split], 'seg_map_path': label_folders[split]},
            'img_suffix': image_suffix,
            'seg_map_suffix': label_suffix,
        }
        for split in SPLITS
    }
    return CustomData(classes, counts, settings)


READERS: dict[str, Callable[[Path, CheckCache], CustomData]] = {
    'image-folder': read_image_folder,
    'coco-format': read_coco_format,
    'label-maps': read_label_maps,
}


def _check_root(root: Path) -> None:
    if not root.is_dir():
        raise UserError(f'data folder {str(root)!r} does not exist: give yours with --data-root')


def _count_images(folder: Path) -> int:
    # Follows links, as mmpretrain does.
    files = (name for _, _, names in os.walk(folder, followlinks=True) for name in names)
    return sum(name.lower().endswith(IMAGE_EXTENSIONS) for name in files)


def _find(root: Path, candidates: Iterable[str], what: str) -> str:
    names = list(candidates)
    for name in names:
        if (root / name).exists():
            return name
    raise UserError(f'{str(root)!r} has no {what}: searched for {", ".join(names)}')


def _summarize_coco(path: Path) -> dict[str, Any]:
    """Return the classes, the number of images, the first file name and whether all objects have masks."""
    tables = read_coco(path)
    ids = {annotation['category_id'] for annotation in tables['annotations']}
    used = [category for category in tables['categories'] if category['id'] in ids]
    return {
        'classes': [category['name'] for category in used],
        'category_ids': [category['id'] for category in used],
        'num_images': len(tables['images']),
        'first_image': tables['images'][0]['file_name'],
        'has_masks': all(annotation.get('segmentation') for annotation in tables['annotations']),
    }


def _find_image_folder(root: Path, split: str, summary: Mapping[str, Any], file: str) -> str:
    """Return the first of the common folders that holds the first image."""
    folders = [name.format(split=split) for name in _COCO_FOLDERS]
    for folder in folders:
        if (root / folder / summary['first_image']).is_file():
            return folder
    raise UserError(
        f'image {summary["first_image"]!r} of {file} is in none of the folders {", ".join(folders)} '
        f'of {str(root)!r}'
    )


def _common_suffix(root: Path, folders: Iterable[str]) -> str:
    """Return the suffix of all images of some folders: an mmseg dataset has a single suffix."""
    folders = list(folders)
    found = Counter(
        path.suffix
        for folder in folders
        for path in (root / folder).iterdir()
        if path.suffix.lower() in IMAGE_EXTENSIONS
    )
    if len(found) != 1:
        what = ' and '.join(f'{count} {suffix}' for suffix, count in found.most_common()) or 'no image'
        raise UserError(
            f'{" and ".join(folders)} of {str(root)!r} have {what} files: all must have the same suffix'
        )
    return next(iter(found))


def _highest_label(paths: list[Path]) -> tuple[int, str]:
    """Return the highest class index of all label maps, -1 if there is none, and a file that has it."""

    def highest(path: Path) -> int:
        try:
            with open_image(read_file(path)) as image:
                labels = np.asarray(image)
        except Exception as error:  # Decoders raise any exception for damaged files.
            raise UserError(f'label map {str(path)!r} cannot be read: {failure_reason(error)}') from error
        if labels.ndim != 2:
            raise UserError(
                f'label map {str(path)!r} has {labels.shape[-1]} channels: must have one, with class indices'
            )
        valid = labels[labels != IGNORE_INDEX]
        return int(valid.max()) if valid.size else -1

    with ThreadPoolExecutor() as pool:
        found = list(tqdm(pool.map(highest, paths), total=len(paths), desc='label maps', unit='map', delay=2))
    return max(found), str(paths[int(np.argmax(found))])


def _class_names(path: Path, highest: int, label_map: str) -> tuple[str, ...]:
    if highest < 0:
        raise UserError(f'all pixels of all label maps are {IGNORE_INDEX}: the first is {label_map!r}')
    if not path.is_file():
        return tuple(f'class {i}' for i in range(highest + 1))
    names = tuple(line.strip() for line in path.read_text().splitlines() if line.strip())
    if highest >= len(names):
        raise UserError(
            f'label {highest} in {label_map!r}: {path.name} has {len(names)} classes, '
            f'so labels must be 0 to {len(names) - 1}, or {IGNORE_INDEX} to ignore a pixel'
        )
    return names


def _palette(label_map: Path, num_classes: int) -> list[list[int]]:
    """Return the palette stored in a label map, or a default one."""
    with open_image(read_file(label_map)) as image:
        stored = image.getpalette() if image.mode == 'P' else None
    if stored and len(stored) >= 3 * num_classes:
        return [stored[3 * i : 3 * i + 3] for i in range(num_classes)]
    return [list(color) for color in class_palette(num_classes)]
