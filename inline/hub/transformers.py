"""The backbones as `transformers` models: config, classifier, backbone and image processor.

Importing this module registers them with AutoConfig, AutoModelForImageClassification, AutoBackbone and
AutoImageProcessor. Weights have the same names as in :class:`inline.InLineBackbone`, so a folder written by
``save_pretrained`` of either library, or by ``tools/publish.py``, can be opened with both.
"""

import functools
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inline.checkpoints import read_checkpoint
from inline.checkpoints.official import FAMILIES
from inline.checkpoints.sources import WEIGHTS_NAME
from inline.hub.backbones import MODEL_ARGUMENTS, MODEL_TYPE, check_sizes, create_backbone, usual_pool
from inline.hub.backbones import InLineBackbone as PlainBackbone
from inline.models.backbones.common import resolve_arch, resolve_img_size
from inline.models.backbones.deit import ARCHS, DeiTArch
from inline.models.mixers.registry import MixersConfig
from inline.utils.arguments import check_arguments, check_choice, parameters_of
from inline.utils.errors import UserError
from inline.utils.imports import import_torchvision_without_operators

try:
    import transformers  # noqa: F401

    # It imports torchvision if that is installed, and does not need it.
    if importlib.util.find_spec('torchvision') is not None:
        import_torchvision_without_operators()
    from transformers import (
        AutoBackbone,
        AutoConfig,
        AutoImageProcessor,
        AutoModelForImageClassification,
        BitImageProcessor,
        BitImageProcessorPil,
        PreTrainedConfig,
        PreTrainedModel,
    )
    from transformers import initialization as init
    from transformers.backbone_utils import BackboneConfigMixin, BackboneMixin
    from transformers.modeling_outputs import BackboneOutput, ImageClassifierOutput
    from transformers.utils import can_return_tuple
    from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
except ImportError as error:
    raise UserError(
        f'inline.hub.transformers requires the package transformers 5: pip install transformers ({error})'
    ) from error

# Side of the centre crop divided by that of the resized image in the released models.
CROP_RATIO = 224 / 256


class InLineConfig(BackboneConfigMixin, PreTrainedConfig):
    """Settings of a model; the names are those of :class:`inline.InLineBackbone`.

    Args:
        family: deit, pvt, swin or cswin.
        arch: Name of a size of the family, or a dict of its settings.
        img_size: Image size that sets position tables and windows, also called image_size; None for the
            family's default.
        in_chans: Channels of the image, also called num_channels.
        drop_path_rate: Stochastic depth rate of the last block.
        mixers: Token mixers; None for the paper's.
        options: More options of the family's class, such as out_norm or absolute_position.
        out_features, out_indices: Stages (DeiT: blocks) whose maps :class:`InLineBackbone` returns, as names
            (stage1, stage2, …) or indices from 0; the last one by default.
        num_labels, id2label, label2id: Classes of :class:`InLineForImageClassification`.
    """

    model_type = MODEL_TYPE
    attribute_map = {'image_size': 'img_size', 'num_channels': 'in_chans'}  # noqa: RUF012  # as in transformers

    family: str = 'pvt'
    arch: str | Mapping[str, Any] = 'tiny'
    img_size: int | Sequence[int] | None = None
    in_chans: int = 3
    drop_path_rate: float = 0.0
    mixers: MixersConfig | None = None
    options: Mapping[str, Any] | None = None
    _out_features: list[str] | None = None
    _out_indices: list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for alias, name in self.attribute_map.items():
            if alias in kwargs:
                setattr(self, name, kwargs.pop(alias))
        arguments = self.backbone_arguments()
        check_arguments(arguments, parameters_of(PlainBackbone), 'InLineConfig')
        check_choice('unknown family', self.family, FAMILIES)
        check_sizes(arguments)
        # Keys of a config.json that the plain backbone wrote.
        kwargs.pop('features_only', None)
        usual = usual_pool(self.family)
        if (pool := kwargs.pop('global_pool', None)) not in (None, '', usual):
            raise UserError(f'global_pool {pool!r}: the transformers classes of {self.family} use {usual!r}')
        if 'num_classes' in kwargs:
            kwargs.setdefault('num_labels', kwargs.pop('num_classes'))
        self.set_output_features_output_indices(
            out_features=kwargs.pop('out_features', None), out_indices=kwargs.pop('out_indices', None)
        )
        super().__post_init__(**kwargs)
        if getattr(self, 'label2id', None) is None:
            self.label2id = {label: index for index, label in self.id2label.items()}

    @property
    def stage_names(self) -> list[str]:
        """Names of the stages, or of the blocks of a DeiT."""
        return [f'stage{i + 1}' for i in range(_count_stages(self.family, json.dumps(self.arch)))]

    def backbone_arguments(self) -> dict[str, Any]:
        """Return the arguments of the plain backbone."""
        return {name: getattr(self, name) for name in MODEL_ARGUMENTS}

    @classmethod
    def from_name(cls, name: str, **settings: Any) -> 'InLineConfig':
        """Return the config of a model of :func:`inline.list_backbones`, such as inline_swin_tiny."""
        with torch.device('meta'):
            return cls.from_backbone(create_backbone(name), **settings)

    @classmethod
    def from_backbone(cls, model: PlainBackbone, **settings: Any) -> 'InLineConfig':
        """Return the config of a plain backbone. `settings` are further settings, such as id2label."""
        stored: Any = model._hub_mixin_config
        arguments = {name: stored[name] for name in MODEL_ARGUMENTS}
        if model.head is not None and 'id2label' not in settings:
            settings = {'num_labels': model.head.fc.out_features, **settings}
        if model.features_only:
            settings = {'out_indices': list(model.backbone.out_indices), **settings}
        return cls(**arguments, **settings)


@functools.cache
def _count_stages(family: str, arch: str) -> int:
    """Return the number of stages of an arch in JSON; the blocks of a DeiT."""
    with torch.device('meta'):
        return len(FAMILIES[family](json.loads(arch)).dims)


class InLinePreTrainedModel(PreTrainedModel):
    """Base class: loading, initialisation and gradient checkpointing."""

    config_class = InLineConfig
    base_model_prefix = 'backbone'
    main_input_name = 'pixel_values'
    input_modalities = ('image',)
    supports_gradient_checkpointing = True
    # The Trainer would pass options of the loss to forward.
    accepts_loss_kwargs = False

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether blocks are recomputed in the backward pass, always with the non-reentrant version."""
        return self.backbone.with_cp

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, enable: bool) -> None:
        self.backbone.with_cp = enable

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path | None, *args: Any, config: Any = None, **kwargs: Any
    ) -> Any:
        """Load a local folder or a model of the Hub, as in transformers.

        The weights in a folder of ``tools/publish.py`` have a hash in their name, or are a .pth file; this
        package reads them.
        """
        folder = Path(pretrained_model_name_or_path or '')
        is_ours = pretrained_model_name_or_path is not None and folder.is_dir() and not _has_weights(folder)
        if not is_ours:
            return super().from_pretrained(pretrained_model_name_or_path, *args, config=config, **kwargs)
        if not isinstance(config, InLineConfig):
            config, kwargs = InLineConfig.from_pretrained(
                config or folder, return_unused_kwargs=True, **kwargs
            )
        weights = read_checkpoint(folder).state_dict
        return super().from_pretrained(None, *args, config=config, state_dict=weights, **kwargs)

    def build(self) -> PlainBackbone:
        """Build the plain model whose modules this model uses."""
        raise NotImplementedError

    def run_backbone(
        self, pixel_values: Tensor, output_hidden_states: bool | None, output_attentions: bool | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...] | None]:
        """Return the features and, if requested, the hidden states.

        These are the output of each stage (B, C, h, w), or of each block of a DeiT (B, 1 + N, C).
        """
        if output_attentions:
            raise UserError(
                'output_attentions=True: linear attention does not compute its weights; '
                'inline.analysis.maps returns those of chosen queries'
            )
        if not (self.config.output_hidden_states if output_hidden_states is None else output_hidden_states):
            return self.backbone(pixel_values), None
        hidden_states: list[Tensor] = []
        layers = self.backbone.blocks if self.config.family == 'deit' else self.backbone.stages
        with _record_outputs(layers, hidden_states):
            features = self.backbone(pixel_values)
        return features, tuple(hidden_states)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:  # noqa: ARG002
        # For code outside of transformers, it skips modules without parameters of their own, such as `self`.
        super()._initialize_weights(module)

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the parameters that were not loaded, as the plain model does."""
        if module is self:
            values = self.build().state_dict()
            for name, tensor in chain(self.named_parameters(), self.named_buffers()):
                # Keeps the tensors that transformers has marked as loaded.
                if name in values:
                    init.copy_(tensor, values[name])


class InLineForImageClassification(InLinePreTrainedModel):
    """A backbone with the linear classifier of the released models."""

    def __init__(self, config: InLineConfig) -> None:
        super().__init__(config)
        if config.num_labels < 1:
            raise UserError(f'num_labels {config.num_labels}: a classifier must have at least 1')
        model = self.build()
        self.backbone: nn.Module = model.backbone
        self.head: Any = model.head
        self.post_init()

    def build(self) -> PlainBackbone:
        return PlainBackbone(**self.config.backbone_arguments(), num_classes=self.config.num_labels)

    @classmethod
    def from_backbone(cls, model: PlainBackbone, **settings: Any) -> 'InLineForImageClassification':
        """Return a copy of a classifier of :func:`inline.create_backbone`; `settings` as in the config."""
        if model.head is None:
            raise UserError('the backbone has no classifier: create it with num_classes')
        classifier = cls(InLineConfig.from_backbone(model, **settings))
        classifier.load_state_dict(model.state_dict())
        return classifier.to(next(model.parameters()).dtype).train(model.training)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **_: Any,
    ) -> ImageClassifierOutput:
        """Images (B, C_in, H, W) → logits (B, classes), and the loss if there are labels (B)."""
        features, hidden_states = self.run_backbone(pixel_values, output_hidden_states, output_attentions)
        last = features[-1]
        logits = self.head(last.mean(dim=(2, 3)) if last.dim() == 4 else last)
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=hidden_states)


class InLineBackbone(BackboneMixin, InLinePreTrainedModel):
    """A backbone that returns feature maps, for the detectors and segmentors of transformers."""

    has_attentions = False

    def __init__(self, config: InLineConfig) -> None:
        super().__init__(config)
        self.backbone = self.build().backbone
        self.num_features = list(self.backbone.dims)
        unused = [f'backbone.{prefix}' for prefix in self.backbone.unused_state_dict_prefixes()]
        self._keys_to_ignore_on_load_unexpected = [f'^{re.escape(name)}' for name in ('head.', *unused)]
        self.post_init()

    def build(self) -> PlainBackbone:
        arguments = self.config.backbone_arguments()
        return PlainBackbone(**arguments, features_only=True, out_indices=self.config.out_indices)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **_: Any,
    ) -> BackboneOutput:
        """Images (B, C_in, H, W) → a feature map (B, C, h, w) for each of ``out_features``."""
        features, hidden_states = self.run_backbone(pixel_values, output_hidden_states, output_attentions)
        return BackboneOutput(feature_maps=features, hidden_states=hidden_states)


def create_image_processor(
    config: InLineConfig,
    *,
    mean: Sequence[float] = IMAGENET_DEFAULT_MEAN,
    std: Sequence[float] = IMAGENET_DEFAULT_STD,
    crop_ratio: float = CROP_RATIO,
    **settings: Any,
) -> BitImageProcessor:
    """Return the preprocessing of the released models: a resize that ignores the aspect ratio, a centre crop.

    Args:
        config: Its img_size is the size of the crop.
        mean, std: Of the training data, for values from 0 to 1.
        crop_ratio: Side of the crop divided by that of the resized image; 1 for no crop.
        settings: Further settings of transformers' BitImageProcessor.
    """
    height, width = _image_size(config)
    resized = {'height': round(height / crop_ratio), 'width': round(width / crop_ratio)}
    return BitImageProcessor(
        size=resized,
        crop_size={'height': height, 'width': width},
        do_center_crop=crop_ratio != 1,
        image_mean=list(mean),
        image_std=list(std),
        **settings,
    )


def _image_size(config: InLineConfig) -> tuple[int, int]:
    if config.img_size is not None:
        return resolve_img_size(config.img_size)
    side = resolve_arch(config.arch, ARCHS, DeiTArch).img_size if config.family == 'deit' else 224
    return side, side


@contextmanager
def _record_outputs(modules: Sequence[nn.Module], outputs: list[Tensor]) -> Iterator[None]:
    """Append the output of each module to `outputs`."""
    hooks = [module.register_forward_hook(lambda *args: outputs.append(args[-1])) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _has_weights(folder: Path) -> bool:
    """Return whether a folder has weights under the names of transformers, in one file or in several."""
    return any((folder / name).is_file() for name in (WEIGHTS_NAME, f'{WEIGHTS_NAME}.index.json'))


AutoConfig.register(MODEL_TYPE, InLineConfig)
AutoModelForImageClassification.register(InLineConfig, InLineForImageClassification)
AutoBackbone.register(InLineConfig, InLineBackbone)
AutoImageProcessor.register(
    InLineConfig, image_processor_classes={'torchvision': BitImageProcessor, 'pil': BitImageProcessorPil}
)
