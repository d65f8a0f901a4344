"""Backbones by name for plain PyTorch, and saving to and loading from the Hugging Face Hub.

Nothing here needs OpenMMLab. Weights have the names of an mmpretrain classifier (``backbone.…``,
``head.fc.…``), so the same file works here, in ``init_cfg`` and in ``tools/test.py``.
"""

import difflib
import fnmatch
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from inline.checkpoints import (
    CONVERTED_KEY,
    check_num_heads,
    compare_state_dict,
    load_complete_state_dict,
    load_partial_state_dict,
    read_checkpoint,
)
from inline.checkpoints.model_card import attention_tags, count_attention, describe_attention
from inline.checkpoints.official import FAMILIES, OFFICIAL, ModelSpec
from inline.checkpoints.pretrained_cfg import META_KEY, PretrainedCfg, parse_pretrained_cfg
from inline.checkpoints.safetensors_format import write_checkpoint
from inline.checkpoints.sources import (
    WEIGHTS_NAME,
    find_packaged,
    hub_name,
    list_packaged,
    locate_checkpoint,
)
from inline.hub.features import FeatureInfo, adapt_input_channels
from inline.hub.timm_interface import MAX_CLASSES, TimmInterface
from inline.models.mixers.registry import MixersConfig
from inline.utils.arguments import (
    check_arguments,
    check_choice,
    check_range,
    format_value,
    parameters_of,
)
from inline.utils.errors import UserError

if TYPE_CHECKING:
    from huggingface_hub import ModelCard, PyTorchModelHubMixin
else:
    try:
        from huggingface_hub import ModelCard, PyTorchModelHubMixin
    except ImportError:

        class PyTorchModelHubMixin:
            """Substitute if huggingface_hub is not installed. Its methods raise."""

            _hub_mixin_config: dict[str, Any] | None = None

            def __init_subclass__(cls, **_: Any) -> None:
                """Accept the settings of the mixin."""

            @staticmethod
            def save_pretrained(*_: Any, **__: Any) -> NoReturn:
                raise UserError(
                    'from_pretrained, save_pretrained and push_to_hub require the package huggingface_hub: '
                    'pip install huggingface_hub safetensors'
                )

            from_pretrained = push_to_hub = save_pretrained


# Small models for Tiny-ImageNet, images of 64 pixels; they train on a CPU.
SMALL = (
    ModelSpec('pvt', 'nano', 64, num_classes=200, crop_pct=1.0),
    ModelSpec('pvt', 'micro', 64, num_classes=200, crop_pct=1.0),
    ModelSpec('swin', 'micro', 64, num_classes=200, crop_pct=1.0),
    ModelSpec('cswin', 'micro', 64, num_classes=200, crop_pct=1.0),
    ModelSpec('deit', 'micro', 64, num_classes=200, crop_pct=1.0),
)
NAMES: dict[str, ModelSpec] = {model.name.replace('-', '_'): model for model in (*OFFICIAL.values(), *SMALL)}
# May be missing without a warning: the output norms, which classifiers do not have, and the head.
_OPTIONAL = ('backbone.out_norms.', 'head.')
# Keys of a config.json that describe the model, independently of its outputs.
MODEL_ARGUMENTS = ('family', 'arch', 'img_size', 'in_chans', 'drop_path_rate', 'mixers', 'options')
# The key `model_type`, by which transformers finds the class, and other keys for transformers.
MODEL_TYPE = 'inline'
_TRANSFORMERS_KEYS = ('model_type', 'transformers_weights', 'id2label', 'label2id')
# Limits for a config.json from the Hub, checked before anything is built.
MAX_STAGES = 16
MAX_BLOCKS = 1000
_logger = logging.getLogger('inline')


class InLineBackbone(TimmInterface, PyTorchModelHubMixin, library_name='inline-attention'):
    """A backbone that returns feature maps, a pooled vector or class logits.

    Args:
        family: deit, pvt, swin or cswin.
        arch: Name of a size of the family, or a dict of its settings.
        img_size: Image size that sets position tables and windows; None for the family's default. Inputs
            may have any size.
        in_chans: Channels of the image.
        features_only: Return the feature maps of ``out_indices`` instead of a pooled vector.
        out_indices: Stages (DeiT: blocks) whose feature maps are returned, negative ones from the end, or the
            number of last ones; None for the family's default.
        num_classes: Classes of the linear classifier; 0 for no classifier.
        drop_path_rate: Stochastic depth rate of the last block.
        mixers: Token mixers, see :mod:`inline.models.mixers.registry`; None for the paper's.
        options: More options of the family's class, such as with_cp, out_norm or absolute_position.
        global_pool: 'avg' for the mean over all positions, 'token' for the class token, '' for features
            without pooling; None for the class token of a DeiT and the mean of other families.
        pretrained_cfg: Mean, std, image size and classes of the weights, see
            :class:`inline.checkpoints.pretrained_cfg.PretrainedCfg`; None for those of ImageNet.
    """

    def __init__(
        self,
        family: str,
        arch: str | Mapping[str, Any],
        img_size: int | Sequence[int] | None = None,
        in_chans: int = 3,
        features_only: bool = False,
        out_indices: int | Sequence[int] | None = None,
        num_classes: int = 0,
        drop_path_rate: float = 0.0,
        mixers: MixersConfig | None = None,
        options: Mapping[str, Any] | None = None,
        global_pool: str | None = None,
        pretrained_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_choice('unknown family', family, FAMILIES)
        if features_only and num_classes:
            raise UserError(
                f'num_classes {num_classes}: must be 0 with features_only, which has no classifier'
            )
        if out_indices is not None and not features_only:
            raise UserError(f'out_indices {format_value(out_indices)}: requires features_only=True')
        chosen: dict[str, Any] = dict(options or {})
        if img_size is not None:
            chosen['img_size'] = img_size
        if features_only and out_indices is not None:
            last_ones = range(-out_indices, 0) if isinstance(out_indices, int) else out_indices
            chosen['out_indices'] = tuple(last_ones)
        elif not features_only:
            chosen |= {'out_type': 'cls_token'} if family == 'deit' else {'out_indices': (-1,)}
        try:
            self.backbone = FAMILIES[family](
                arch, in_channels=in_chans, drop_path_rate=drop_path_rate, mixers=mixers, **chosen
            )
        except TypeError as error:
            raise UserError(f'options {sorted(chosen)} are not accepted by {family}: {error}') from error
        self.features_only = features_only
        self.num_features = self.head_hidden_size = self.backbone.dims[-1]
        built = len(self._levels())
        self.feature_info = FeatureInfo(
            [self._describe_level(i) for i in range(built)],
            self.backbone.out_indices if features_only else range(built),
        )
        self.global_pool = usual_pool(family)
        self.reset_classifier(num_classes, global_pool)
        values = {} if pretrained_cfg is None else pretrained_cfg
        self._pretrained_cfg = parse_pretrained_cfg(values, 'the model')
        if pretrained_cfg is None:
            height, width = (img_size, img_size) if isinstance(img_size, int) else img_size or (224, 224)
            self._pretrained_cfg = _with_channels(PretrainedCfg((3, height, width)), in_chans)

    def load_weights(self, source: str | Path) -> None:
        """Load the weights that match and warn about the others; see :func:`create_backbone` for `source`."""
        checkpoint = read_checkpoint(source, convert_softmax_models=True)
        note = check_num_heads(self, checkpoint.meta, str(source))
        weights: Mapping[str, Tensor] = checkpoint.state_dict
        if not any(name.startswith('backbone.') for name in weights):
            weights = {f'backbone.{name}': value for name, value in weights.items()}
        # Detectors and segmentors have other heads, which are skipped.
        usable = {key: value for key, value in weights.items() if key.startswith(('backbone.', 'head.fc.'))}
        report = load_partial_state_dict(self, self._adapt_stem(usable), str(source))
        required = [n for n in (*report.missing, *report.mismatched) if not n.startswith(_OPTIONAL)]
        if required or (self.head is not None and 'head.fc.weight' not in report.matched):
            layers = f'; {report.describe_layers()}' if CONVERTED_KEY in checkpoint.meta else ''
            _logger.warning('weights %r: %s%s%s', str(source), report.describe(), layers, note)
        cfg = checkpoint.pretrained_cfg
        if cfg is not None:
            channels = self.get_submodule(self.pretrained_cfg['first_conv']).in_channels
            self._pretrained_cfg = _with_channels(cfg, int(channels))  # type: ignore[arg-type]

    def save_pretrained(
        self, save_directory: str | Path, *, config: Any = None, **options: Any
    ) -> str | None:
        """Write config.json, model.safetensors and README.md, and upload them with ``push_to_hub=True``.

        transformers can also load the folder.
        """
        if config is None:
            changed = {'num_classes': self.num_classes, 'global_pool': self.global_pool}
            config = {**(self._hub_mixin_config or {}), **changed, META_KEY: self._meta_cfg()}  # type: ignore[dict-item]
        config = {**config, 'model_type': MODEL_TYPE}
        return super().save_pretrained(save_directory, config=config, **options)

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write the weights; mean, std and classes are part of the file."""
        cfg = self._meta_cfg()
        meta = {META_KEY: cfg, 'dataset_meta': {'classes': cfg['classes']} if cfg['classes'] else {}}
        write_checkpoint({'state_dict': self.state_dict(), 'meta': meta}, save_directory / WEIGHTS_NAME)

    def _meta_cfg(self) -> dict[str, Any]:
        own = {key: self.pretrained_cfg[key] for key in vars(self._pretrained_cfg)}
        return PretrainedCfg(**own).to_dict()

    def _adapt_stem(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert the patch embedding of RGB images if this model has a different number of channels."""
        key = f'{self.pretrained_cfg["first_conv"]}.weight'
        channels = self.get_parameter(key).shape[1]
        if key in weights and weights[key].dim() == 4 and weights[key].shape[1] == 3 != channels:
            return {**weights, key: adapt_input_channels(weights[key].float(), channels)}
        return weights

    def generate_model_card(self, *_: Any, **__: Any) -> 'ModelCard':
        """Return the model card that the mixin saves with the weights; the mixin's arguments are unused."""
        counts = count_attention(self)
        tags = '\n'.join(f'- {tag}' for tag in ['image-feature-extraction', *attention_tags(counts)])
        millions = sum(parameter.numel() for parameter in self.parameters()) / 1e6
        classes = 'no classifier' if self.head is None else f'{self.head.fc.out_features} classes'
        summary = f'{type(self.backbone).__name__}, {millions:.2f} M parameters, {classes}.'
        return ModelCard(_CARD.format(tags=tags, summary=summary, attention=describe_attention(counts)))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> 'InLineBackbone':
        """Load a local folder or a model of the Hub. A missing folder raises without a network request."""
        name = str(pretrained_model_name_or_path)
        is_folder = Path(name).is_dir()
        remote = None if is_folder else hub_name(name)
        if not is_folder and remote is None:
            raise UserError(f'folder {name!r} does not exist, and a name on the Hub has the form user/model')
        try:
            model: InLineBackbone = super().from_pretrained(remote or name, **options)
        except UserError:
            raise
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            # The mixin parses config.json and expects a JSON object.
            reason = format_value(str(error))
            raise UserError(f'config.json of {name!r} is not a valid configuration: {reason}') from error
        except OSError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f'{name!r} is not a folder and cannot be downloaded from the Hugging Face Hub: {reason}'
            ) from error
        return model

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        config: Mapping[str, Any] | None = None,
        map_location: str = 'cpu',
        **arguments: Any,
    ) -> 'InLineBackbone':
        """Build and load a model; unknown or missing settings and weights are errors."""
        known = list(cls._hub_mixin_init_parameters)[1:]
        if config is None:
            raise UserError(f'{model_id!r} has no config.json: save_pretrained did not write it')
        changes = {name: value for name, value in arguments.items() if value != config.get(name)}
        config = plain_settings(config)
        arguments = {**config, **changes}
        unknown = sorted({*config, *arguments} - set(known))
        if unknown:
            raise UserError(f'unknown key {unknown[0]!r} for {model_id!r}: supported are {", ".join(known)}')
        missing = sorted({'family', 'arch'} - arguments.keys())
        if missing:
            raise UserError(f'config.json of {model_id!r} has no {", ".join(missing)}')
        known_types = parameters_of(cls)  # type: ignore[arg-type]  # classes have a hash
        check_arguments(arguments, known_types, f'config.json of {model_id!r}')
        check_sizes(arguments)
        # On the meta device, because the sizes are not trusted until they match the weights.
        with torch.device('meta'):
            model = cls(**arguments)
        path = locate_checkpoint(
            model_id if Path(model_id).is_dir() else f'hf_hub:{model_id}',
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
        )
        weights = read_checkpoint(path).state_dict
        report = compare_state_dict(model, weights)
        if not report.exact:
            raise UserError(f'weights of {model_id!r} do not match its config.json: {report.describe()}')
        model = cls(**arguments)
        load_complete_state_dict(model, weights, model_id)
        return model.to(map_location).eval()


_CARD = """---
library_name: inline-attention
tags:
{tags}
---
# Backbone of the InLine project

{summary} {attention}

```python
from inline import InLineBackbone

model = InLineBackbone.from_pretrained('USER/MODEL')  # or the path of this folder
```

The author has not stated the training data, the accuracy or the licence.
"""


def list_backbones(pattern: str = '*') -> list[str]:
    """Return the names that :func:`create_backbone` accepts and that match a pattern with wildcards."""
    return fnmatch.filter(NAMES, pattern.replace('-', '_'))


def create_backbone(
    name: str,
    pretrained: str | Path | bool | None = None,
    *,
    features_only: bool = False,
    out_indices: int | Sequence[int] | None = None,
    num_classes: int = 0,
    img_size: int | Sequence[int] | None = None,
    in_chans: int = 3,
    drop_path_rate: float = 0.0,
    mixers: MixersConfig | None = None,
    options: Mapping[str, Any] | None = None,
    global_pool: str | None = None,
) -> InLineBackbone:
    """Build a model of :func:`list_backbones` as a plain torch module. The arguments follow timm.

    Args:
        name: For example inline_swin_tiny.
        pretrained: Weights to load: True for those of this name in the package; a .pth or .safetensors file,
            ours, the authors', or of a plain DeiT, ViT, PVT, Swin or CSwin of timm, OpenMMLab or the official
            repositories; a folder of ``save_pretrained`` or ``tools/publish.py``; a URL; or ``user/model`` on
            the Hugging Face Hub, also written ``hf_hub:user/model``.
        img_size: None for the image size of the released model.

    The other arguments are those of :class:`InLineBackbone`.
    """
    released = _find(name)
    model = InLineBackbone(
        family=released.family,
        arch=released.arch,
        img_size=released.img_size if img_size is None else img_size,
        in_chans=in_chans,
        features_only=features_only,
        out_indices=out_indices,
        num_classes=num_classes,
        drop_path_rate=drop_path_rate,
        mixers=mixers,
        options=options,
        global_pool=global_pool,
        pretrained_cfg=_with_channels(released.pretrained_cfg, in_chans).to_dict(),
    )
    if pretrained is True:
        pretrained = _packaged_weights(released)
    if pretrained:
        model.load_weights(pretrained)
    return model


def _packaged_weights(model: ModelSpec) -> Path:
    path = find_packaged(model.name)
    if path is None:
        packaged = ', '.join(list_packaged()) or 'no weights'
        download = f'tools/convert_checkpoint.py {model.name} OUT.pth downloads one'
        raise UserError(
            f'pretrained=True: the package contains {packaged}; for {model.name} give a file, a folder, a '
            f'URL or a name on the Hugging Face Hub{f" ({download})" if model.name in OFFICIAL else ""}'
        )
    return path


def _with_channels(cfg: PretrainedCfg, channels: int) -> PretrainedCfg:
    """Return the settings for a different number of channels, each with the average mean and std."""
    if cfg.input_size[0] == channels:
        return cfg
    mean, std = (sum(numbers) / len(numbers) for numbers in (cfg.mean, cfg.std))
    size = (channels, *cfg.input_size[1:])
    return replace(cfg, input_size=size, mean=(mean,) * channels, std=(std,) * channels)


def usual_pool(family: str) -> str:
    """Return how a family pools: the class token of a DeiT, else the mean over all positions."""
    return 'token' if family == 'deit' else 'avg'


def plain_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of :class:`InLineBackbone` in a config.json of this package or of transformers."""
    if 'transformers_version' not in config:
        return {name: value for name, value in config.items() if name not in _TRANSFORMERS_KEYS}
    settings = {name: config[name] for name in MODEL_ARGUMENTS if name in config}
    if 'InLineForImageClassification' in (config.get('architectures') or ()):
        # transformers does not write the class names if they are its default for two classes.
        return {**settings, 'num_classes': len(config.get('id2label', (0, 1)))}
    return {**settings, 'features_only': True, 'out_indices': config.get('out_indices')}


def _last_stage(arch: str | Mapping[str, Any]) -> int:
    """Return the index of the last stage; all named archs have four stages."""
    depths = arch.get('depths') if isinstance(arch, Mapping) else None
    return max(len(depths), 1) - 1 if isinstance(depths, list | tuple) else 3


def check_sizes(arguments: Mapping[str, Any]) -> None:
    """Raise for numbers of classes, stages and blocks that are slow to build even on the meta device.

    Widths and image sizes have limits of their own in the backbones.
    """
    check_range('num_classes', arguments.get('num_classes', 0), 0, MAX_CLASSES)
    arch = arguments['arch']
    for name, value in arch.items() if isinstance(arch, Mapping) else ():
        numbers = value if isinstance(value, list | tuple) else [value]
        check_range(f'number of {name}', len(numbers), 1, MAX_STAGES)
        if name in ('depth', 'depths'):
            check_range(f'sum of {name}', sum(n for n in numbers if isinstance(n, int)), 1, MAX_BLOCKS)


def _find(name: str) -> ModelSpec:
    known = name.replace('-', '_')
    if known not in NAMES:
        close = difflib.get_close_matches(known, NAMES) or list(NAMES)
        raise UserError(f'unknown backbone {name!r}: did you mean {", ".join(close)}?')
    return NAMES[known]
