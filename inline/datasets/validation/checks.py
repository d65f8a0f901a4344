"""Checks of the paths and datasets of a config before training or testing, and a cache of their results."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import is_main_process

from inline.checkpoints import check_checkpoint
from inline.datasets.image_file import MMPRETRAIN_EXTENSIONS
from inline.datasets.validation.classes import (
    check_annotation_file,
    check_class_folders,
    check_same_classes,
    check_zip_folders,
)
from inline.datasets.validation.coco import check_coco, format_counts
from inline.datasets.zip_archive import label_file_of, zip_of
from inline.engine.config import starting_checkpoints
from inline.engine.distributed.setup import call_on_rank_zero
from inline.utils.atomic import atomic_write
from inline.utils.errors import UserError
from inline.utils.nested import leaf_datasets, max_num_classes, walk_dicts
from inline.utils.resources import TOOLS, format_tool

# In the work directory of a run.
FOLDER = 'data_validation'
# Increase when a check becomes stricter, so that cached results of earlier versions are not used.
_CACHE_VERSION = 3
# Folders of public datasets, and their names in tools/prepare_data.py.
_PUBLIC_DATASETS = {
    'imagenet': 'imagenet',
    'coco': 'coco',
    'ade': 'ade20k',
    'tiny-imagenet-200': 'tiny-imagenet',
}


class CheckCache:
    """Results of checks that passed, kept in a file so that a resumed run does not repeat them.

    A result is used again as long as the arguments of the check and the size and modification time of its
    files are the same. Errors are not cached.

    Args:
        path: The JSON file; None to check every time.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[str, Any] = {}
        if path is not None:
            with suppress(OSError, ValueError):
                content = json.loads(path.read_bytes())
                self._entries = content if isinstance(content, dict) else {}

    @classmethod
    def of_run(cls, cfg: Config) -> 'CheckCache':
        """Return the cache in the work directory of a config, or an empty one if it has none."""
        work_dir = cfg.get('work_dir')
        return cls(Path(work_dir, FOLDER, 'checks.json') if work_dir else None)

    def get(self, check: Callable[..., Any], files: Iterable[Path], *args: Any) -> Any:
        """Return the cached result of ``check(*args)``, a JSON value, or call it.

        Args:
            check: A function whose result depends on its arguments and on the content of `files` alone.
            files: The files that it reads.
        """
        if self._path is None:
            return check(*args)
        key = _digest([_CACHE_VERSION, check.__qualname__, [str(arg) for arg in args]])
        state = _digest([_file_state(path) for path in files])
        entry = self._entries.get(key)
        if isinstance(entry, dict) and entry.get('files') == state:
            return entry['result']
        result = check(*args)
        self._entries[key] = {'files': state, 'result': result}
        # Without the cache, for example on a full disk, the next start checks again.
        with suppress(OSError):
            atomic_write(self._path, json.dumps(self._entries).encode())
        return result


def check_paths(cfg: Config, dataloaders: Iterable[str]) -> None:
    """Check that the files and folders of some dataloaders, and the pretrained weights, exist."""
    for name in dataloaders:
        for dataset in leaf_datasets((cfg.get(name) or {}).get('dataset')):
            for what, path in _dataset_paths(dataset):
                if not path.exists():
                    raise UserError(f'{what} {str(path)!r} of {name} does not exist: {_advice(path, name)}')
    for key, checkpoint in starting_checkpoints(cfg):
        check_checkpoint(checkpoint, key)


def validate_datasets(cfg: Config, dataloaders: Iterable[str]) -> list[str]:
    """Check the datasets on rank 0, using the cache of the run. Print and return the notes."""
    notes = call_on_rank_zero(lambda: check_datasets(cfg, dataloaders, CheckCache.of_run(cfg)), cfg)
    if is_main_process():
        for note in notes:
            print(note, flush=True)
    return notes


def check_datasets(cfg: Config, dataloaders: Iterable[str], cache: CheckCache) -> list[str]:
    """Check the annotations of all datasets of some dataloaders.

    Returns:
        One line for each annotation file of which something is dropped or changed.

    Raises:
        UserError: An annotation file or class folder is invalid or does not match the config.
    """
    notes: list[str] = []
    train_classes: list[str] | None = None
    for loader in dataloaders:
        for dataset in leaf_datasets((cfg.get(loader) or {}).get('dataset')):
            name = type_name(dataset)
            if name == 'CocoDataset':
                notes += _check_coco(loader, dataset, cache)
            elif name in ('CustomDataset', 'ImageNet') and dataset.get('with_label', True):
                folder, classes = _check_classes(max_num_classes(cfg.model), loader, dataset, cache)
                if classes is not None:
                    train_classes = classes if train_classes is None else train_classes
                    check_same_classes(train_classes, classes, folder)
    return notes


def type_name(node: Mapping[str, Any]) -> str:
    """Return the `type` of a config dict without its scope."""
    return str(node.get('type')).rpartition('.')[2]


def _dataset_paths(dataset: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    root = Path(dataset.get('data_root') or '')
    if str(root) != '.':
        is_tiny_imagenet = str(dataset.get('type')).startswith('inline.TinyImageNet')
        yield 'data folder', (zip_of(root) if is_tiny_imagenet else None) or root
    if dataset.get('ann_file'):
        yield 'annotation file', root / dataset['ann_file']
    # The folder of our ImageNet is named after the split, and may be a zip file.
    is_imagenet = dataset.get('type') == 'inline.ImageNet'
    prefix = dataset.get('data_prefix') or (is_imagenet and dataset.get('split')) or {}
    for name in prefix.values() if isinstance(prefix, Mapping) else [prefix]:
        zip_path = zip_of(root / name) if is_imagenet else None
        yield 'data folder', zip_path or root / name


def _advice(path: Path, dataloader: str) -> str:
    if 'digit_scenes' in path.parts:
        return f'create it with `python {TOOLS}/make_digit_scenes.py`'
    public = next((_PUBLIC_DATASETS[name] for name in path.parts if name in _PUBLIC_DATASETS), None)
    if public is not None:
        prepare = format_tool('prepare_data', 'prepare-data')
        return (
            f'`{prepare} {public} PATH` checks a copy and links it there; '
            'or give the folder of all datasets with --data-root or INLINE_DATA_ROOT'
        )
    return (
        'give the folder of all datasets with --data-root or INLINE_DATA_ROOT, '
        f'or set {dataloader}.dataset.data_root with --cfg-options'
    )


def _check_coco(loader: str, dataset: Mapping[str, Any], cache: CheckCache) -> list[str]:
    path = Path(dataset.get('data_root') or '', dataset['ann_file'])
    classes = (dataset.get('metainfo') or {}).get('classes')
    if classes is None:
        from mmdet.datasets import CocoDataset

        classes = CocoDataset.METAINFO['classes']
    with_masks = any(step.get('with_mask') for _, step in walk_dicts(dataset.get('pipeline')))
    counts = cache.get(check_coco, [path], path, list(classes), with_masks, loader != 'test_dataloader')
    return [format_counts(path, counts)] if counts else []


def _check_classes(
    num_classes: int, loader: str, dataset: Mapping[str, Any], cache: CheckCache
) -> tuple[Path, list[str] | None]:
    """Check a classification dataset; return its folder and, if there are any, its class folders."""
    if not num_classes:
        raise UserError('the model config has no num_classes')
    root, split = Path(dataset.get('data_root') or ''), dataset.get('split')
    prefix = dataset.get('data_prefix') or split or ''
    folder = root / (next(iter(prefix.values())) if isinstance(prefix, dict) else prefix)
    if split == 'test':
        return folder, None
    zip_path = zip_of(folder) if dataset['type'] == 'inline.ImageNet' else None
    ann_file = root / (dataset.get('ann_file') or f'meta/{split}.txt')
    if ann_file.is_file():
        cache.get(check_annotation_file, [ann_file], ann_file, num_classes)
        return folder, None
    if zip_path is None:
        extensions = dataset.get('extensions', MMPRETRAIN_EXTENSIONS)
        # Adding or removing a file changes the modification time of its folder.
        folders = [folder, *(path for path in folder.iterdir() if path.is_dir())]
        args = (folder, num_classes, loader == 'train_dataloader', list(extensions))
        return folder, cache.get(check_class_folders, folders, *args)
    label_file = label_file_of(zip_path)
    if label_file is None:
        return zip_path, cache.get(check_zip_folders, [zip_path], zip_path, num_classes)
    cache.get(check_annotation_file, [label_file], label_file, num_classes, True)
    return zip_path, None


def _file_state(path: Path) -> list[Any]:
    try:
        stat = path.stat()
    except OSError:
        return [str(path), None]
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
