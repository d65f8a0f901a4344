"""Boxes and masks from COCO JSON, VOC XML and YOLO; VOC and YOLO are converted to COCO JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inline.datasets.custom.annotated import (
    AnnotatedImage,
    Box,
    have_masks,
    used_labels,
    write_coco,
)
from inline.datasets.custom.layouts import (
    SPLIT_NAMES,
    CustomData,
    Layout,
    ReadOptions,
    check_splits,
    complete_splits,
    format_names,
    has_files,
    has_named,
    resolve_classes,
    split_folders,
    unknown_layout_error,
)
from inline.datasets.custom.voc import read_voc
from inline.datasets.custom.yolo import read_yolo
from inline.datasets.image_file import IMAGE_EXTENSIONS
from inline.datasets.validation.coco import (
    Tables,
    check_box_format,
    check_references,
    load_json,
    parse_coco,
    read_coco,
)
from inline.utils.errors import UserError

# Common locations of the annotations and images of a split, in search order.
_COCO_FILES = (
    '{split}.json',
    'annotations/{split}.json',
    'annotations/instances_{split}.json',
    'annotations/instances_{split}2017.json',
    '{split}/_annotations.coco.json',
    'instances_{split}.json',
    'annotations_{split}.json',
    '{split}_annotations.json',
    'annotations/{split}_annotations.json',
    'annotations/person_keypoints_{split}2017.json',
    '{split}/annotations.json',
    '{split}/labels.json',
    '{split}/{split}.json',
    'labels/{split}.json',
)
_COCO_FOLDERS = (
    '{split}',
    'images/{split}',
    '{split}2017',
    'images',
    '.',
    '{split}/images',
    '{split}/data',
    'data',
    'JPEGImages',
)
LAYOUTS = (
    Layout(
        'COCO JSON (train.json or annotations/instances_train.json or train/_annotations.coco.json)',
        (('a .json file', has_files('.json')), ('images', has_files(*IMAGE_EXTENSIONS))),
    ),
    Layout(
        'VOC XML (Annotations/*.xml and JPEGImages/*.jpg)',
        (
            ('.xml files', has_files('.xml')),
            ('a folder JPEGImages or images', has_named('JPEGImages', 'images')),
        ),
    ),
    Layout(
        'YOLO (data.yaml, or images/*.jpg and labels/*.txt)',
        (
            ('a data.yaml or folder labels with .txt files', has_files('.yaml', '.yml', '.txt')),
            ('a folder images', has_named('images')),
        ),
    ),
)


@dataclass(frozen=True)
class _Source:
    """The images of all splits, before the classes are known.

    Attributes:
        layout: The format.
        splits: Images by split.
        classes: Class names in label order.
        root: Folder of the dataset.
        prefix: Folder of the images by split, relative to `root`.
        category_ids: Ids of the classes in COCO annotations, by name.
    """

    layout: str
    splits: dict[str, list[AnnotatedImage]]
    classes: Sequence[str]
    root: Path
    prefix: Mapping[str, str]
    category_ids: Mapping[str, int] = field(default_factory=dict)


def read_detection(root: Path, options: ReadOptions) -> CustomData:
    """Read boxes and optional masks.

    COCO files that mmdet can read are used in place. All others are written as standard COCO JSON to
    ``options.folder``.
    """
    notes: list[str] = []
    # Other formats may have JSON files that are not annotations.
    files = {} if root.is_file() and root.suffix != '.json' else _find_coco(root)
    if files:
        return _read_coco(root, files, options)
    yolo = read_yolo(root, notes)
    if yolo is not None:
        source = _Source('YOLO', yolo.splits, yolo.classes, yolo.base, {})
    else:
        splits = read_voc(root, notes)
        if not splits:
            raise unknown_layout_error(root, LAYOUTS)
        labels = used_labels(image for split in ('train', *splits) for image in splits.get(split, []))
        source = _Source('VOC XML', splits, sorted(labels), root, {})
    return _write(source, root, options, notes)


def _write(source: _Source, root: Path, options: ReadOptions, notes: list[str]) -> CustomData:
    """Apply ``val_split``, write one COCO file per split and return its settings."""
    divided = source.splits.keys()
    splits = complete_splits(source.splits, root, options, key=lambda image: image.file_name)
    trained = used_labels(splits.get('train') or [image for images in splits.values() for image in images])
    if not trained:
        raise UserError(f'{str(root)!r} has no object in {"train" if "train" in splits else "any split"}')
    found = [name for name in source.classes if source.layout == 'YOLO' or name in trained]
    classes = resolve_classes(found, options)
    settings: dict[str, dict[str, Any]] = {}
    for split, images in splits.items():
        other = used_labels(images).keys() - set(classes)
        if other:
            notes.append(
                f'custom data: {split} has objects of {format_names(sorted(other))}, '
                'which are not in train and are not used'
            )
        path = options.folder / f'{split}.json'
        write_coco(path, images, classes)
        origin = split if split in divided else 'train'
        prefix = source.prefix.get(origin, '')
        settings[split] = _settings(source.root, str(path), prefix, classes, source.category_ids)
    return CustomData(
        source.layout,
        classes,
        {split: len(images) for split, images in splits.items()},
        settings,
        objects={split: used_labels(images).total() for split, images in splits.items()},
        has_masks=have_masks(splits.get('train', [])),
        notes=tuple(notes),
    )


def _settings(
    root: Path, ann_file: str, prefix: str, classes: Sequence[str], category_ids: Mapping[str, int]
) -> dict[str, Any]:
    metainfo: dict[str, Any] = {'classes': list(classes)}
    if all(name in category_ids for name in classes):
        # Checkpoints contain the ids, for predictions in COCO's format.
        metainfo['category_ids'] = [category_ids[name] for name in classes]
    return {
        'data_root': str(root),
        'metainfo': metainfo,
        'ann_file': ann_file,
        'data_prefix': {'img': prefix},
    }


def _find_coco(root: Path) -> dict[str, str]:
    """Return the annotation file of each split, relative to `root`; a single file is in 'train'."""
    if root.is_file():
        return {'train': root.name} if root.suffix == '.json' else {}
    found = {}
    for split, names in SPLIT_NAMES.items():
        candidates = (pattern.format(split=name) for name in names for pattern in _COCO_FILES)
        path = next((name for name in candidates if (root / name).is_file()), None)
        if path is not None:
            found[split] = path
    if found:
        return found
    places = ('*.json', 'annotations/*.json', '*/_annotations.coco.json')
    files = [path for place in places for path in sorted(root.glob(place)) if _is_coco(path)]
    return {'train': files[0].relative_to(root).as_posix()} if len(files) == 1 else {}


def _is_coco(path: Path) -> bool:
    try:
        content = load_json(path)
    except UserError:
        # The error is reported when the file is read.
        return True
    return isinstance(content, dict) and 'images' in content and 'annotations' in content


def _read_coco(root: Path, files: dict[str, str], options: ReadOptions) -> CustomData:
    base = root.parent if root.is_file() else root
    summaries = {
        split: options.cache.get(summarize_coco, [base / file], base / file) for split, file in files.items()
    }
    notes: list[str] = []
    for split in [split for split, summary in summaries.items() if not summary['num_objects']]:
        if split == 'test':
            notes.append(f'custom data: {files[split]} has no annotations and is not used')
            del files[split], summaries[split]
    check_splits(summaries, root, options)
    leading = summaries.get('train') or next(iter(summaries.values()))
    unused = [name for name in leading['categories'] if name not in leading['used']]
    if not leading['used']:
        raise UserError(
            f'{str(base / files[next(iter(summaries))])!r} has no annotation of any of its categories'
        )
    classes = resolve_classes(leading['used'], options)
    unused = [name for name in unused if name not in classes]
    if unused:
        notes.append(f'custom data: categories without annotations are not used: {format_names(unused)}')
    prefix = {split: _find_image_folder(base, split, summaries[split], file) for split, file in files.items()}
    complete = options.val_split is None and all(
        summary['is_complete']
        and [name for name in summary['categories'] if name in classes] == list(classes)
        for summary in summaries.values()
    )
    if not complete:
        splits = {
            split: _annotated_images(read_coco(base / file, fill=True)) for split, file in files.items()
        }
        source = _Source('COCO JSON', splits, classes, base, prefix, leading['category_ids'])
        return _write(source, root, options, notes)
    return CustomData(
        'COCO JSON',
        classes,
        {split: summary['num_images'] for split, summary in summaries.items()},
        {
            split: _settings(base, file, prefix[split], classes, leading['category_ids'])
            for split, file in files.items()
        },
        objects={split: summary['num_objects'] for split, summary in summaries.items()},
        has_masks=leading['has_masks'],
        notes=tuple(notes),
    )


def summarize_coco(path: Path) -> dict[str, Any]:
    """Return the properties of a COCO file that the config needs.

    ``is_complete`` is True if mmdet and pycocotools can read it unchanged: they need an area and ``iscrowd``,
    and count matches of id 0 as missed objects.
    """
    content = load_json(path)
    is_complete = _is_complete(content.get('annotations') if isinstance(content, dict) else None)
    tables = parse_coco(content, path, require_annotations=False, fill=True)
    check_references(tables, path)
    check_box_format(tables, path)
    annotations = tables['annotations']
    used = {annotation['category_id'] for annotation in annotations}
    return {
        'categories': [category['name'] for category in tables['categories']],
        'used': [category['name'] for category in tables['categories'] if category['id'] in used],
        'category_ids': {category['name']: category['id'] for category in tables['categories']},
        'num_images': len(tables['images']),
        'num_objects': len(annotations),
        'first_image': tables['images'][0]['file_name'],
        'has_masks': all(annotation.get('segmentation') for annotation in annotations),
        'is_complete': is_complete,
    }


def _is_complete(annotations: Any) -> bool:
    entries = annotations if isinstance(annotations, list) else []
    return all(
        isinstance(entry, dict) and 'area' in entry and 'iscrowd' in entry and entry.get('id') != 0
        for entry in entries
    )


def _annotated_images(tables: Tables) -> list[AnnotatedImage]:
    names = {category['id']: category['name'] for category in tables['categories']}
    boxes: dict[int, list[Box]] = {}
    for entry in tables['annotations']:
        box = Box(
            names[entry['category_id']],
            entry['bbox'],
            entry.get('segmentation'),
            entry['area'],
            bool(entry['iscrowd']),
        )
        boxes.setdefault(entry['image_id'], []).append(box)
    return [
        AnnotatedImage(entry['file_name'], entry['width'], entry['height'], boxes.get(entry['id'], []))
        for entry in tables['images']
    ]


def _find_image_folder(root: Path, split: str, summary: Mapping[str, Any], file: str) -> str:
    """Return the first of the common folders that holds the first image, or the folder of the file."""
    names = [name.format(split=alias) for alias in SPLIT_NAMES[split] for name in _COCO_FOLDERS]
    names += [path.name for path in split_folders(root).values()] + [str(Path(file).parent)]
    folders = list(dict.fromkeys(names))
    for folder in folders:
        if (root / folder / summary['first_image']).is_file():
            return folder
    raise UserError(
        f'image {summary["first_image"]!r} of {file} is in none of the folders {format_names(folders)} '
        f'of {str(root)!r}'
    )
