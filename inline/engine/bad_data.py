"""Every kind of bad data gets its defined outcome, whatever config is run. See ``docs/bad_data.md``."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from inline.datasets.class_check import check_folders, check_list, check_same, zip_folders
from inline.datasets.coco_check import check_coco, describe_found
from inline.datasets.imagenet_layout import IMAGE_EXTENSIONS, map_of, zip_of
from inline.datasets.reading import DEFAULT_MAX_PIXELS
from inline.datasets.skipping import CHECKED, describe_skipped, read_skipped
from inline.engine.config import walk_dicts
from inline.errors import UserError
from inline.registry import HOOKS

DEFAULTS = {'max_skipped': 0.01, 'max_pixels': DEFAULT_MAX_PIXELS}
FOLDER = 'bad_data'


def guard_data(cfg: Config, dataloaders: tuple[str, ...]) -> None:
    """Check the data sets of some data loaders, and let them read images and label maps as we do.

    The setting ``bad_data`` of a config may change ``max_skipped``, the share or number of training samples
    that may be unreadable, and ``max_pixels``, the size of the largest image that is read.
    """
    options = _options(cfg)
    folder = Path(cfg.work_dir, FOLDER)
    notes: list[str] = []
    class_folders: dict[str, list[str]] = {}
    for loader in dataloaders:
        for i, dataset in enumerate(_own_datasets((cfg.get(loader) or {}).get('dataset'))):
            notes += _check(cfg, loader, dataset, class_folders)
            _read_as_we_do(cfg, dataset, options['max_pixels'])
            inner = ConfigDict(dataset)
            dataset.clear()
            dataset.update(type=CHECKED, dataset=inner)
            if loader == 'train_dataloader':
                limit = options['max_skipped']
                dataset.skipping = ConfigDict(folder=str(folder), name=f'dataset_{i}', limit=limit)
    if 'train_dataloader' in dataloaders:
        hook = ConfigDict(type='inline.BadDataHook', folder=str(folder), notes=notes)
        cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), hook]
        # No process reads data before all of them are here, so none loses what another wrote. A test has
        # nothing to write down, and its folder may be that of a training.
        for path in folder.glob('dataset_*_rank_*.txt'):
            path.unlink(missing_ok=True)
    if os.environ.get('RANK', '0') == '0':
        for note in notes:
            print(note, flush=True)


@HOOKS.register_module()
class BadDataHook(Hook):
    """Tells in the log which training samples were left out: when there are more, and at the end.

    Args:
        folder: Where the processes that load data write them down.
        notes: What was found in annotation files before.
        interval: Iterations from one look to the next.
    """

    priority = 'LOW'

    def __init__(self, folder: str, notes: list[str], interval: int = 50) -> None:
        self.folder = Path(folder)
        self.notes = notes
        self.interval = interval
        self._told = 0

    def before_train(self, runner: Runner) -> None:
        for note in self.notes:
            runner.logger.warning(note)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,  # noqa: ARG002 (MMEngine's)
        data_batch: Any = None,  # noqa: ARG002
        outputs: Any = None,  # noqa: ARG002
    ) -> None:
        if self.every_n_train_iters(runner, self.interval):
            self._tell_more(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        self._tell_more(runner)

    def after_train(self, runner: Runner) -> None:
        runner.logger.info(describe_skipped(read_skipped(self.folder)))

    def _tell_more(self, runner: Runner) -> None:
        skipped = read_skipped(self.folder) if is_main_process() else []
        if len(skipped) > self._told:
            self._told = len(skipped)
            runner.logger.warning(describe_skipped(skipped))


def _options(cfg: Config) -> dict[str, Any]:
    given = cfg.get('bad_data') or {}
    unknown = sorted(given.keys() - DEFAULTS.keys())
    if unknown:
        raise UserError(f'bad_data.{unknown[0]} in the config: choose of {", ".join(DEFAULTS)}')
    options = {**DEFAULTS, **given}
    for name, value in options.items():
        if type(value) not in (int, float) or not value >= 0:
            raise UserError(f'bad_data.{name} {value!r} in the config: must be a number, 0 or more')
    return options


def _own_datasets(dataset: Any) -> Iterator[ConfigDict]:
    """The data sets inside wrappers, and inside what an earlier call made of them."""
    if not isinstance(dataset, dict):
        return
    if dataset.get('type') == CHECKED:
        inner = dataset.pop('dataset')
        dataset.clear()
        dataset.update(inner)
    if 'dataset' in dataset:
        yield from _own_datasets(dataset['dataset'])
    elif 'datasets' in dataset:
        for one in dataset['datasets']:
            yield from _own_datasets(one)
    else:
        yield dataset


def _read_as_we_do(cfg: Config, dataset: ConfigDict, max_pixels: int) -> None:
    """Put our transforms in the place of those that read images and label maps."""
    for _, step in walk_dicts(dataset.get('pipeline')):
        kind = _kind(step)
        if kind in ('LoadImageFromFile', 'LoadImage'):
            step.pop('file_client_args', None)
            step.update(type='inline.LoadImage', max_pixels=max_pixels)
        elif kind in ('LoadAnnotations', 'LoadLabelMap') and cfg.default_scope == 'mmseg':
            step.pop('imdecode_backend', None)
            step.update(type='inline.LoadLabelMap', num_classes=_num_classes(cfg), max_pixels=max_pixels)


def _check(cfg: Config, loader: str, dataset: ConfigDict, class_folders: dict[str, list[str]]) -> list[str]:
    """Refuse a data set that cannot be meant; lines about what will be left out."""
    if _kind(dataset) == 'CocoDataset':
        return _check_coco(loader, dataset)
    if _kind(dataset) in ('CustomDataset', 'ImageNet') and dataset.get('with_label', True):
        _check_classes(cfg, loader, dataset, class_folders)
    return []


def _check_coco(loader: str, dataset: ConfigDict) -> list[str]:
    path = Path(dataset.get('data_root') or '', dataset['ann_file'])
    classes = (dataset.get('metainfo') or {}).get('classes')
    if classes is None:
        from mmdet.datasets import CocoDataset

        classes = CocoDataset.METAINFO['classes']
    needs_masks = any(step.get('with_mask') for _, step in walk_dicts(dataset.get('pipeline')))
    found = check_coco(path, classes, needs_masks, needs_objects=loader != 'test_dataloader')
    return [describe_found(path, found)] if found else []


def _check_classes(
    cfg: Config, loader: str, dataset: ConfigDict, class_folders: dict[str, list[str]]
) -> None:
    root, num_classes = Path(dataset.get('data_root') or ''), _num_classes(cfg)
    prefix = dataset.get('data_prefix') or dataset.get('split') or ''
    folder = root / (next(iter(prefix.values())) if isinstance(prefix, dict) else prefix)
    packed = zip_of(folder) if dataset.type == 'inline.ImageNet' else None
    listed = root / (dataset.get('ann_file') or f'meta/{dataset.get("split")}.txt')
    if dataset.get('split') == 'test':
        return
    if listed.is_file():
        check_list(listed, num_classes)
    elif packed and map_of(packed):
        check_list(map_of(packed) or packed, num_classes, separator=None)
    else:
        names = (
            zip_folders(packed, num_classes)
            if packed
            else check_folders(
                folder, num_classes, loader == 'train_dataloader', dataset.get('extensions', IMAGE_EXTENSIONS)
            )
        )
        check_same(class_folders.setdefault('first', names), names, folder)


def _num_classes(cfg: Config) -> int:
    """The classes of the head. Of several numbers the highest: a binary head may have one channel less."""
    numbers = [part['num_classes'] for _, part in walk_dicts(cfg.model) if 'num_classes' in part]
    if not numbers:
        raise UserError('the config has no num_classes in its model')
    return max(numbers)


def _kind(part: ConfigDict) -> str:
    return str(part.get('type')).rpartition('.')[2]
