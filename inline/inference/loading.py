"""From a config, by path or name, and a checkpoint to a model that predicts."""

import colorsys
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.registry import DATASETS, MODELS, DefaultScope

import inline
from inline.engine.config import (
    CHECKPOINT_SUFFIXES,
    TOOLBOXES,
    check_checkpoint,
    check_config_path,
    load_config,
    walk_dicts,
)
from inline.engine.finetune import fit_to_own_data
from inline.engine.launch import drop_pretrained
from inline.engine.pretrained import check_whole, read_checkpoint, read_weights
from inline.errors import UserError

Colour = tuple[int, int, int]

_SHOWN = 3


@dataclass(frozen=True)
class Classes:
    """What a model tells apart: names by label, and for each a colour in RGB."""

    names: tuple[str, ...]
    palette: tuple[Colour, ...]


def find_config(config: str | Path | Config, options: Mapping[str, Any] | None = None) -> Config:
    """A config as it is, read from a path, or by the name of one of those in ``configs/``.

    Settings of one that is read are overridden by `options`.
    """
    if isinstance(config, Config):
        if config.get('default_scope') not in TOOLBOXES:
            raise UserError(
                f'the config has default_scope {config.get("default_scope")!r}: '
                f'it must name the toolbox, one of {", ".join(TOOLBOXES)}'
            )
        return Config(config._cfg_dict.to_dict())
    return load_config(find_config_path(config), options)


def find_config_path(config: str | Path) -> Path:
    """A config's file, given by its path or by the name of one of those in ``configs/``."""
    path = Path(config)
    is_path = path.suffix in ('.py', *CHECKPOINT_SUFFIXES) or path.is_file()
    found = path if is_path else _by_name(str(config))
    check_config_path(found)
    return found


def _by_name(name: str) -> Path:
    """The file whose name, or path below ``configs/``, without its ending is `name`."""
    folders = (Path('configs'), Path(inline.__file__).parents[1] / 'configs')
    root = next((folder for folder in folders if folder.is_dir()), None)
    if root is None:
        raise UserError(f'config {name!r} is no file, and there is no folder configs/ to look for it by name')
    known: dict[str, list[Path]] = {}
    for path in sorted(root.rglob('*.py')):
        inner = path.relative_to(root).with_suffix('')
        if '_base_' not in inner.parts:
            for key in {inner.name, inner.as_posix()}:
                known.setdefault(key, []).append(path)
    found = known.get(name, [])
    if len(found) > 1:
        several = ', '.join(path.relative_to(root).with_suffix('').as_posix() for path in found[:_SHOWN])
        raise UserError(
            f'config {name!r} is the name of {len(found)} files: choose by path, such as {several}'
        )
    if not found:
        # A file is known by two names.
        close = {known[key][0]: key for key in difflib.get_close_matches(name, known, n=_SHOWN)[::-1]}
        names = ', '.join([*close.values()][::-1])
        hint = f'did you mean {names}?' if close else 'give its path, or a name as in configs/'
        raise UserError(f'config {name!r} does not exist: {hint}')
    return found[0]


def build_model(cfg: Config, checkpoint: str | None) -> tuple[BaseModel, Classes]:
    """The config's model with all weights of the checkpoint, as they were drawn if there is none."""
    meta: Mapping[str, Any] = {}
    if checkpoint is not None:
        check_checkpoint(checkpoint)
        meta = _read_meta(checkpoint)
    names = meta.get('classes') or ()
    if 'own_data' in cfg and checkpoint is not None:
        _fit_classes(cfg, names, checkpoint)
    # The checkpoint holds all weights: those to start training from need not be here.
    drop_pretrained(cfg.model)
    cfg.model.pop('pretrained', None)
    if cfg.get('data_preprocessor') is not None:
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        # Statistics over several GPUs are fixed numbers here.
        model = revert_sync_batchnorm(MODELS.build(cfg.model))
        of_config = _dataset_meta(cfg)
    if checkpoint is not None:
        check_whole(model, checkpoint)
        model.load_state_dict(read_weights(checkpoint), strict=False)
    return model.eval(), _classes(cfg, {**of_config, **meta} if names else of_config)


def _read_meta(checkpoint: str) -> Mapping[str, Any]:
    """What a training wrote down about its data set; nothing where there are weights alone."""
    content = read_checkpoint(checkpoint)
    meta = content.get('meta') if isinstance(content, Mapping) else None
    found = meta.get('dataset_meta') if isinstance(meta, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _fit_classes(cfg: Config, names: Sequence[str], checkpoint: str) -> None:
    """As many outputs as the training found classes; the data itself is asked where no checkpoint tells."""
    if not names:
        try:
            fit_to_own_data(cfg)
        except UserError as error:
            raise UserError(
                f'checkpoint {checkpoint!r} does not name its classes, and to count them: {error}'
            ) from error
        return
    for _, part in walk_dicts(cfg._cfg_dict):
        if 'num_classes' in part:
            part['num_classes'] = len(names)


def _dataset_meta(cfg: Config) -> dict[str, Any]:
    """Names and colours of the config's data set, as far as they can be told without reading it."""
    for _, node in walk_dicts((cfg.get('test_dataloader') or {}).get('dataset')):
        if 'pipeline' in node:
            kind = DATASETS.get(node['type'])
            own = {'classes': node['classes']} if isinstance(node.get('classes'), list | tuple) else {}
            return {**getattr(kind, 'METAINFO', {}), **(node.get('metainfo') or {}), **own}
    return {}


def _classes(cfg: Config, meta: Mapping[str, Any]) -> Classes:
    count = max(
        (part['num_classes'] for _, part in walk_dicts(cfg.model) if 'num_classes' in part), default=0
    )
    names = tuple(str(name) for name in meta.get('classes') or ())
    if len(names) != count and count:
        names = tuple(str(label) for label in range(count))
    palette = tuple((int(red), int(green), int(blue)) for red, green, blue in meta.get('palette') or ())
    # Colours of another number are of other classes.
    return Classes(names, palette if len(palette) == len(names) else distinct_colours(len(names)))


def distinct_colours(count: int) -> tuple[Colour, ...]:
    """So many colours in RGB, neighbours far apart: hues step by the golden ratio, in three brightnesses."""
    levels = ((0.85, 0.95), (0.6, 1.0), (0.95, 0.7))
    colours = []
    for i in range(count):
        saturation, value = levels[i % len(levels)]
        red, green, blue = colorsys.hsv_to_rgb(i * 0.618034 % 1, saturation, value)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return tuple(colours)
