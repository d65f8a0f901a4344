"""Registration with timm: ``import inline.hub.timm`` adds the names of ``list_backbones`` to timm's models.

``timm.create_model`` then builds an :class:`inline.hub.InLineBackbone`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from inline.checkpoints.sources import find_packaged
from inline.hub.backbones import NAMES, InLineBackbone, create_backbone
from inline.utils.arguments import check_names
from inline.utils.errors import UserError
from inline.utils.imports import import_torchvision_without_operators

try:
    # timm imports torchvision.
    import_torchvision_without_operators()
    from timm.models import register_model
except ImportError as error:
    raise UserError('import inline.hub.timm requires the package timm: pip install timm') from error

# Keys of timm's settings that name weights, in its order of preference.
_SOURCES = ('file', 'url', 'hf_hub_id')
# Settings of images, which a user may change.
_DATA_KEYS = ('input_size', 'mean', 'std', 'interpolation', 'crop_pct', 'crop_mode')
# Arguments that timm's scripts pass to every model, with the value that has no effect.
_WITHOUT_EFFECT = {'drop_rate': 0.0, 'cache_dir': None}
_OPTIONS = (
    'features_only',
    'out_indices',
    'num_classes',
    'img_size',
    'in_chans',
    'drop_path_rate',
    'mixers',
    'options',
    'global_pool',
)


def _make_entrypoint(name: str) -> Callable[..., InLineBackbone]:
    """Return the function that timm calls to build a model."""

    def entrypoint(
        pretrained: bool | str | Path = False,
        pretrained_cfg: Any = None,
        pretrained_cfg_overlay: Mapping[str, Any] | None = None,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> InLineBackbone:
        for key, value in _WITHOUT_EFFECT.items():
            if options.pop(key, value) != value:
                raise UserError(f'{key} is not supported by {name}: leave it out')
        check_names(options, _OPTIONS, 'argument', name)
        settings = {**_as_dict(pretrained_cfg), **(pretrained_cfg_overlay or {})}
        if options.get('features_only'):
            # timm ignores the number of classes, which its scripts always pass.
            options.pop('num_classes', None)
        else:
            options.setdefault('num_classes', settings.get('num_classes') or NAMES[name].num_classes)
        weights = pretrained
        if pretrained is True:
            weights = next((settings[key] for key in _SOURCES if settings.get(key)), True)
        model = create_backbone(name, weights, **options)
        model.update_pretrained_cfg({key: settings[key] for key in _DATA_KEYS if key in settings})
        return model if device is None and dtype is None else model.to(device=device, dtype=dtype)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f'Build {name}; see :func:`inline.create_backbone` for the arguments.'
    return entrypoint


def _as_dict(pretrained_cfg: Any) -> dict[str, Any]:
    """Return settings that the user gave to timm as a dict."""
    if isinstance(pretrained_cfg, str):
        raise UserError(f'pretrained_cfg {pretrained_cfg!r}: our models have no tags, give a dict')
    if pretrained_cfg is None or isinstance(pretrained_cfg, Mapping):
        return dict(pretrained_cfg or {})
    return dict(pretrained_cfg.to_dict())


def _default_cfg(name: str) -> dict[str, Any]:
    """Return the settings of a model with the keys of timm's own class; timm lists those with a file."""
    cfg, packaged = NAMES[name].pretrained_cfg, find_packaged(name)
    values = {key: getattr(cfg, key) for key in (*_DATA_KEYS, 'num_classes')}
    file = {} if packaged is None else {'file': str(packaged)}
    return {**values, **file, 'classifier': 'head.fc', 'origin_url': 'https://arxiv.org/abs/2412.06590'}


# timm reads this table when an entry point of this module is registered.
default_cfgs = {name: _default_cfg(name) for name in NAMES}
for _name in NAMES:
    register_model(_make_entrypoint(_name))
