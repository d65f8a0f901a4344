"""Reading a config and checking what it names before anything is built or loaded."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config

from inline.datasets.imagenet_layout import zip_of
from inline.engine.check_config import check_options
from inline.errors import UserError
from inline.models.archs import resolve_arch
from inline.models.backbones.deit import ARCHS, DeiTArch
from inline.safetensors_files import SUFFIX

TOOLBOXES = ('mmpretrain', 'mmdet', 'mmseg')
CHECKPOINT_SUFFIXES = ('.pth', '.pt', '.ckpt', SUFFIX)
# What tools/prepare_data.py calls the data sets in these folders.
PUBLIC_DATA_SETS = {'imagenet': 'imagenet', 'coco': 'coco', 'ade': 'ade20k'}


def load_config(path: str | Path, options: Mapping[str, Any] | None = None) -> Config:
    """Read a config file, override some of its settings, and check that it names a toolbox."""
    check_config_path(path)
    try:
        cfg = Config.fromfile(str(path))
    except (OSError, KeyError, SyntaxError, TypeError) as error:
        raise UserError(f'config {str(path)!r} cannot be read: {error}') from error
    except ImportError as error:
        raise UserError(
            f'config {str(path)!r} cannot be read: {_first_cause(error)}. '
            'PYTHONPATH must name the folder of a file in custom_imports'
        ) from error
    check_options(cfg, options or {})
    try:
        cfg.merge_from_dict(dict(options or {}))
    except (KeyError, TypeError, AssertionError, IndexError) as error:
        raise UserError(f'--cfg-options do not fit {str(path)!r}: {error}') from error
    if cfg.get('default_scope') not in TOOLBOXES:
        raise UserError(
            f'config {str(path)!r} has default_scope {cfg.get("default_scope")!r}: '
            f'it must name the toolbox, one of {", ".join(TOOLBOXES)}'
        )
    return cfg


def _first_cause(error: BaseException) -> BaseException:
    """What began a chain of errors: MMEngine's own are many lines and leave out the reason."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def check_config_path(path: str | Path) -> None:
    """Refuse a checkpoint that was given in place of a config, and a file that is not there."""
    if Path(path).suffix in CHECKPOINT_SUFFIXES:
        raise UserError(f'config {str(path)!r} looks like a checkpoint: CONFIG comes first')
    if not Path(path).is_file():
        near = [str(other) for other in sorted(Path(path).parent.glob('*.py'))]
        close = difflib.get_close_matches(str(path), near, n=1)
        hint = f'did you mean {close[0]}?' if close else 'give the path of a file such as those in configs/'
        if not Path(path).suffix:
            hint += ' (names without a path are for predict, export and serve)'
        raise UserError(f'config {str(path)!r} does not exist: {hint}')


def image_size(cfg: Config) -> tuple[int, int]:
    """Height and width of the images that a config's backbone is made for; of a DeiT its arch may say it."""
    backbone = cfg.model.backbone
    size = backbone.get('img_size')
    if size is None and str(backbone.get('type')).endswith('InLineDeiT'):
        size = resolve_arch(backbone.get('arch', 'tiny'), ARCHS, DeiTArch).img_size
    size = 224 if size is None else size
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def set_data_root(cfg: Config, root: str | Path) -> None:
    """Let `root` be the folder that configs call ``data``, wherever they name it."""
    for _, node in walk_dicts(cfg._cfg_dict):
        for key in ('data_root', 'ann_file'):
            value = node.get(key)
            if isinstance(value, str) and Path(value).parts[:1] == ('data',):
                node[key] = str(Path(root, *Path(value).parts[1:]))


def check_paths(cfg: Config, dataloaders: tuple[str, ...]) -> None:
    """Refuse a config whose data or starting weights are not there."""
    for name in dataloaders:
        for dataset in _leaf_datasets((cfg.get(name) or {}).get('dataset')):
            for what, path in _dataset_paths(dataset):
                if not path.exists():
                    raise UserError(
                        f'{what} {str(path)!r} of {name} does not exist: {_data_hint(path, name)}'
                    )
    for key, checkpoint in _checkpoints(cfg):
        check_checkpoint(checkpoint, key)


def check_checkpoint(path: str, what: str = 'checkpoint') -> None:
    """Refuse a checkpoint on this machine that is not there; addresses of elsewhere are left alone."""
    if '://' not in path and not Path(path).is_file():
        raise UserError(f'{what} {path!r} does not exist: give the path of a .pth or .safetensors file')


def check_resumable(path: str) -> None:
    """Refuse to go on from a file that can hold no state of a training."""
    if Path(path).suffix == SUFFIX:
        raise UserError(
            f'--resume {str(path)!r}: a safetensors file holds weights and no state of a training; '
            'start from them with --cfg-options load_from=FILE, or resume from a .pth file'
        )


def _leaf_datasets(dataset: Any) -> Iterator[Mapping[str, Any]]:
    """The datasets inside wrappers such as RepeatDataset and ConcatDataset."""
    if not isinstance(dataset, Mapping):
        return
    inner = dataset.get('datasets', [dataset['dataset']] if 'dataset' in dataset else None)
    if inner is None:
        yield dataset
        return
    for one in inner:
        yield from _leaf_datasets(one)


def _dataset_paths(dataset: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    root = Path(dataset.get('data_root') or '')
    if str(root) != '.':
        yield 'data folder', root
    if dataset.get('ann_file'):
        yield 'annotation file', root / dataset['ann_file']
    # Our ImageNet names its folder by the split, and reads a zip in its place.
    is_imagenet = dataset.get('type') == 'inline.ImageNet'
    prefix = dataset.get('data_prefix') or (is_imagenet and dataset.get('split')) or {}
    for name in prefix.values() if isinstance(prefix, Mapping) else [prefix]:
        packed = zip_of(root / name) if is_imagenet else None
        yield 'data folder', packed or root / name


def _data_hint(path: Path, dataloader: str) -> str:
    if 'digit_scenes' in path.parts:
        return 'make it with `python tools/make_digit_scenes.py`'
    data_set = next((PUBLIC_DATA_SETS[part] for part in path.parts if part in PUBLIC_DATA_SETS), None)
    if data_set is not None:
        return (
            f'`python tools/prepare_data.py {data_set} PATH` checks a copy and links it there; '
            'or name the folder that holds the data sets with --data-root or INLINE_DATA_ROOT'
        )
    return (
        'name the folder that holds the data sets with --data-root or INLINE_DATA_ROOT, '
        f'or set {dataloader}.dataset.data_root with --cfg-options'
    )


def _checkpoints(cfg: Config) -> Iterator[tuple[str, str]]:
    if cfg.get('load_from'):
        yield 'load_from', cfg.load_from
    for key, node in walk_dicts(cfg.get('model'), 'model'):
        if node.get('type') == 'Pretrained' and node.get('checkpoint'):
            yield f'{key}.checkpoint', node['checkpoint']


def walk_dicts(node: Any, key: str = '') -> Iterator[tuple[str, dict[str, Any]]]:
    """Every dict at or below a part of a config, each with its dotted key."""
    if isinstance(node, dict):
        yield key, node
        for name, child in node.items():
            yield from walk_dicts(child, f'{key}.{name}')
    elif isinstance(node, list | tuple):
        for i, child in enumerate(node):
            yield from walk_dicts(child, f'{key}.{i}')
