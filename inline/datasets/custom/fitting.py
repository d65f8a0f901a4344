"""Filling in a config with ``custom_data`` from the dataset: classes, paths, lists and palette."""

import atexit
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache as cached
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.dist import is_main_process

from inline.datasets.custom.classification import read_classification
from inline.datasets.custom.detection import read_detection
from inline.datasets.custom.layouts import (
    CustomData,
    ReadOptions,
    UnknownLayoutError,
    enter_wrapper,
    format_summary,
)
from inline.datasets.custom.segmentation import read_segmentation
from inline.datasets.validation.checks import CheckCache, type_name
from inline.engine.distributed.setup import call_on_rank_zero
from inline.utils.errors import UserError
from inline.utils.nested import leaf_datasets, walk_dicts

Reader = Callable[[Path, ReadOptions], CustomData]
# Each name is that of the first supported format.
READERS: dict[str, Reader] = {
    'image-folder': read_classification,
    'coco-format': read_detection,
    'label-maps': read_segmentation,
}
# An example config for each. Classification is last, because any folder of folders matches its layout.
_TASKS = {
    'coco-format': ('detection', 'retinanet_inline-pvt-tiny_coco-format'),
    'label-maps': ('segmentation', 'semantic-fpn_inline-pvt-tiny_label-maps'),
    'image-folder': ('classification', 'inline-pvt-tiny_image-folder'),
}
# In the work directory of a run.
FOLDER = 'custom_data'
# The splits that each dataloader reads, the first that exists.
_SPLITS = {
    'train_dataloader': ('train',),
    'val_dataloader': ('val', 'test'),
    'test_dataloader': ('test', 'val'),
}
_EVALUATORS = {'val_evaluator': 'val_dataloader', 'test_evaluator': 'test_dataloader'}
# Settings of other datasets, in configs that an earlier version saved.
_OLD_SETTINGS = ('img_suffix', 'seg_map_suffix')


def fit_to_custom_data(
    cfg: Config,
    cache: CheckCache | None = None,
    *,
    phase: str = 'classes',
    needs_val: bool = True,
    model_classes: Sequence[str] = (),
    allow_other_classes: bool = False,
) -> None:
    """Set classes, paths and palette of a config from its data, if it has the key ``custom_data``.

    Rank 0 reads the data. A config that is already fitted, such as one saved by a run, is fitted again.

    Args:
        cfg: The config, changed in place.
        cache: Results of an earlier start of the run. Without it nothing is cached, and lists and converted
            annotations are written to a temporary folder instead of the work directory.
        phase, needs_val, model_classes, allow_other_classes: As in :class:`ReadOptions`.
    """
    if 'custom_data' not in cfg:
        return
    if cfg.custom_data not in READERS:
        raise UserError(f'custom_data {cfg.custom_data!r} in the config: must be one of {", ".join(READERS)}')
    datasets = {loader: list(leaf_datasets((cfg.get(loader) or {}).get('dataset'))) for loader in _SPLITS}
    first = next((node for nodes in datasets.values() for node in nodes), None)
    if first is None:
        raise UserError('the config has custom_data but no dataset')
    ignored = cfg.get('ignore_label')
    ignored = [] if ignored is None else ignored if isinstance(ignored, list | tuple) else [ignored]
    root = Path(cfg.get('custom_root') or first['data_root'])
    cfg.custom_root = str(root)
    options = ReadOptions(
        folder=_temporary_folder() if cache is None else Path(cfg.work_dir, FOLDER).resolve(),
        cache=cache or CheckCache(None),
        phase=phase,
        needs_val=needs_val,
        val_split=cfg.get('val_split'),
        ignore_labels=tuple(ignored),
        model_classes=tuple(str(name) for name in model_classes),
        allow_other_classes=allow_other_classes,
    )
    data = call_on_rank_zero(lambda: read_custom_data(cfg.custom_data, root, options), cfg)
    _check_masks(cfg, data, root)
    _apply(cfg, data, datasets)
    if is_main_process():
        for line in (format_summary(data), *data.notes):
            print(line, flush=True)


def read_custom_data(task: str, root: Path, options: ReadOptions) -> CustomData:
    """Read a dataset; if its layout belongs to another task, the error says so."""
    if not root.exists():
        raise UserError(f'data folder {str(root)!r} does not exist: give yours with --data-root')
    if options.ignore_labels and task != 'label-maps':
        raise UserError('--ignore-label is for segmentation with label maps: the config is for another task')
    inner = enter_wrapper(root)
    try:
        return READERS[task](inner, options)
    except UnknownLayoutError as error:
        raise UnknownLayoutError(f'{error}{_other_task(task, inner)}') from error


def _other_task(task: str, root: Path) -> str:
    """Return a hint if a dataset can be read for another task."""
    for other, (name, config) in _TASKS.items():
        if other != task:
            with suppress(UserError):
                data = READERS[other](root, ReadOptions(_temporary_folder(), phase='classes'))
                return f'. It can be read as {data.layout} for {name}, with configs/finetune/{config}.py'
    return ''


def _check_masks(cfg: Config, data: CustomData, root: Path) -> None:
    trains_masks = any(step.get('with_mask') for _, step in walk_dicts(cfg.get('train_dataloader')))
    if trains_masks and 'train' in data.dataset and not data.has_masks:
        raise UserError(
            f'{str(root)!r} has annotations without a segmentation, but the config trains masks: '
            'use a config for boxes, such as configs/finetune/retinanet_inline-pvt-tiny_coco-format.py'
        )


def _apply(cfg: Config, data: CustomData, datasets: dict[str, list[ConfigDict]]) -> None:
    for _, node in walk_dicts([cfg.model, cfg.get('data_preprocessor')]):
        if 'num_classes' in node:
            node['num_classes'] = len(data.classes)
    chosen = {
        loader: next((split for split in splits if split in data.dataset), None)
        for loader, splits in _SPLITS.items()
    }
    for loader, split in chosen.items():
        for node in datasets[loader]:
            if split is None:
                # Not needed in this phase; the saved config shows the root.
                node['data_root'] = cfg.custom_root
                continue
            for name in _OLD_SETTINGS:
                node.pop(name, None)
            node.update(ConfigDict(data.dataset[split]))
    for evaluator, loader in _EVALUATORS.items():
        split = chosen[loader]
        for _, node in walk_dicts(cfg.get(evaluator)):
            if type_name(node) == 'CocoMetric' and split is not None:
                settings = data.dataset[split]
                node['ann_file'] = str(Path(settings['data_root'], settings['ann_file']))


@cached
def _temporary_folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix='inline-custom-data-')

    def remove() -> None:
        with suppress(OSError):
            folder.cleanup()

    atexit.register(remove)
    return Path(folder.name)
