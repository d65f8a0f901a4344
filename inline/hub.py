"""Backbones by name for plain PyTorch, and their way to the Hugging Face Hub and back.

Nothing here needs OpenMMLab. The names of weights are those of an mmpretrain classifier (``backbone.…``,
``head.fc.…``), so that one file serves here, in ``init_cfg`` and in ``tools/test.py``.
"""

import difflib
import fnmatch
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from inline.cards import attention_tags, count_attention, tell_attention
from inline.errors import UserError
from inline.models import InLineDeiT
from inline.models.backbones.common import init_weights
from inline.models.mixers.registry import MixersConfig
from inline.official.catalogue import FAMILIES, OFFICIAL, OfficialModel
from inline.official.convert import convert
from inline.official.keys import is_official
from inline.safetensors_files import SUFFIX
from inline.weights import compare, read_state_dict, start_from

if TYPE_CHECKING:
    from huggingface_hub import ModelCard, PyTorchModelHubMixin
else:
    try:
        from huggingface_hub import ModelCard, PyTorchModelHubMixin
    except ImportError:
        from inline.hub_missing import PyTorchModelHubMixin

NAMES = {name.replace('-', '_'): model for name, model in OFFICIAL.items()}
HUB_PREFIXES = ('hf_hub:', 'hf-hub:')
# What the mixin calls the file of weights; a published folder has one with the hash in its name instead.
WEIGHTS_NAME = 'model.safetensors'
# Made anew where a file lacks them: a level's norm, which no classifier has for its early stages, and the
# classifier of other classes.
_OPTIONAL = ('backbone.out_norms.', 'head.')
_logger = logging.getLogger('inline')


@dataclass(frozen=True)
class FeatureInfo:
    """What each returned level is: its channels, and by how much it is smaller than the image."""

    levels: tuple[tuple[int, int], ...]

    def channels(self) -> list[int]:
        return [channels for channels, _ in self.levels]

    def reduction(self) -> list[int]:
        return [reduction for _, reduction in self.levels]


class LinearHead(nn.Module):
    """The classifier of all released models: one linear layer."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(dim, num_classes)
        self.apply(init_weights)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) → (B, classes)."""
        return self.fc(x)


class InLineBackbone(
    nn.Module,
    PyTorchModelHubMixin,
    library_name='inline-attention',
):
    """A backbone alone, with pooling, or with a classifier, that ``from_pretrained`` makes from its config.

    Args:
        family: deit, pvt, swin or cswin.
        arch: A size of the family, or a dict of sizes.
        img_size: Image size of the position tables or windows, the family's own if None; images of any
            size are taken.
        in_chans: Channels of the image.
        features_only: Whether to return the maps of ``out_indices`` instead of a pooled vector.
        out_indices: Stages (of a DeiT: blocks) whose maps are returned; None for the family's own.
        num_classes: Classes of the linear classifier; 0 for none.
        drop_path_rate: Stochastic depth of the last block.
        mixers: Token mixers, see :mod:`inline.models.mixers.registry`; None for the paper's.
        options: Further options of the family's class, such as with_cp, out_norm or absolute_position.
    """

    def __init__(
        self,
        family: str,
        arch: str | Mapping[str, Any],
        img_size: int | Sequence[int] | None = None,
        in_chans: int = 3,
        features_only: bool = False,
        out_indices: Sequence[int] | None = None,
        num_classes: int = 0,
        drop_path_rate: float = 0.0,
        mixers: MixersConfig | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if family not in FAMILIES:
            raise UserError(f'unknown family {family!r}: choose one of {", ".join(FAMILIES)}')
        if features_only and num_classes:
            raise UserError(f'num_classes {num_classes}: with features_only there is no classifier, give 0')
        if num_classes < 0:
            raise UserError(f'num_classes {num_classes}: must be 0, for no classifier, or more')
        if out_indices is not None and not features_only:
            raise UserError(f'out_indices {tuple(out_indices)}: only with features_only=True')
        chosen: dict[str, Any] = dict(options or {})
        if img_size is not None:
            chosen['img_size'] = img_size
        if features_only and out_indices is not None:
            chosen['out_indices'] = tuple(out_indices)
        elif not features_only:
            chosen |= {'out_type': 'cls_token'} if family == 'deit' else {'out_indices': (_last_stage(arch),)}
        try:
            self.backbone = FAMILIES[family](
                arch,
                in_channels=in_chans,
                drop_path_rate=drop_path_rate,
                mixers=mixers,
                **chosen,
            )
        except TypeError as error:
            raise UserError(f'options {sorted(chosen)} do not fit {family}: {error}') from error
        self.features_only = features_only
        dims, returned = self.backbone.dims, self.backbone.out_indices
        self.feature_info = FeatureInfo(tuple((dims[i], self._reduction(i)) for i in returned))
        self.num_features = dims[-1]
        self.head = LinearHead(dims[-1], num_classes) if num_classes else None

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Images (B, 3, H, W) → maps (B, C, h, w), a vector (B, C), or logits (B, classes)."""
        features = self.backbone(x)
        if self.features_only:
            return features
        last = features[-1]
        pooled = last.mean(dim=(2, 3)) if last.dim() == 4 else last
        return pooled if self.head is None else self.head(pooled)

    def load_weights(self, source: str | Path) -> None:
        """Start from a file, a folder, or a model of the Hugging Face Hub; see :func:`create_backbone`."""
        weights = read_state_dict(find_weights(str(source)))
        if is_official(weights):
            weights = convert(weights)[1]
        if not any(name.startswith('backbone.') for name in weights):
            weights = {f'backbone.{name}': value for name, value in weights.items()}
        # The heads of detectors and segmentors have no place here.
        own = {name: value for name, value in weights.items() if name.startswith(('backbone.', 'head.fc.'))}
        fit = start_from(self, own, str(source))
        if any(not name.startswith(_OPTIONAL) for name in (*fit.missing, *fit.misshapen)) or (
            self.head is not None and 'head.fc.weight' not in fit.matched
        ):
            _logger.warning('weights %r: %s', str(source), fit.describe())

    def generate_model_card(self, *_: Any, **__: Any) -> 'ModelCard':
        """What the mixin writes beside the weights. Its arguments fill a template, which this has not."""
        counts = count_attention(self)
        tags = '\n'.join(f'- {tag}' for tag in ['image-feature-extraction', *attention_tags(counts)])
        return ModelCard(_CARD.format(tags=tags, summary=self._describe(), attention=tell_attention(counts)))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> 'InLineBackbone':
        """The mixin's, but a folder that is not there is told before the network is asked."""
        name = str(pretrained_model_name_or_path)
        prefix, hub_name = _split_prefix(name)
        if not prefix and not Path(name).is_dir() and not _may_be_on_hub(name):
            raise UserError(f'folder {name!r} does not exist, and a model of the Hub is named user/model')
        try:
            model: InLineBackbone = super().from_pretrained(hub_name, **options)
        except OSError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f'{name!r} is no folder, and as a model of the Hugging Face Hub cannot be fetched: {reason}'
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
        """The mixin's, but what is unknown or missing, in the config or among the weights, is refused."""
        known = list(cls._hub_mixin_init_parameters)[1:]
        if config is None:
            raise UserError(f'{model_id!r} has no config.json: it is no folder or model of save_pretrained')
        unknown = sorted({*config, *arguments} - set(known))
        if unknown:
            raise UserError(f'unknown key {unknown[0]!r} for {model_id!r}: it takes {", ".join(known)}')
        lacking = sorted({'family', 'arch'} - arguments.keys())
        if lacking:
            raise UserError(f'config.json of {model_id!r} lacks {", ".join(lacking)}')
        model = cls(**arguments)
        path = find_weights(
            model_id,
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
        )
        weights = read_state_dict(path)
        fit = compare(model, weights)
        if not fit.whole or fit.unused:
            raise UserError(f'weights of {model_id!r} do not fit its config.json: {fit.describe()}')
        model.load_state_dict(weights)
        return model.to(map_location).eval()

    def _reduction(self, level: int) -> int:
        if isinstance(self.backbone, InLineDeiT):
            return int(self.backbone.patch_embed.stride)
        return 4 * 2**level

    def _describe(self) -> str:
        millions = sum(parameter.numel() for parameter in self.parameters()) / 1e6
        kind = type(self.backbone).__name__
        if self.head is not None:
            return (
                f'{kind}, {millions:.2f} M parameters, a classifier of {self.head.fc.out_features} classes.'
            )
        return f'{kind}, {millions:.2f} M parameters, without a classifier.'


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

What it was trained on, what it scores and what its licence is, its author did not write down here.
"""


def list_backbones(pattern: str = '*') -> list[str]:
    """Names that :func:`create_backbone` takes, those that fit a pattern with wildcards."""
    return fnmatch.filter(NAMES, pattern.replace('-', '_'))


def create_backbone(
    name: str,
    pretrained: str | Path | bool | None = None,
    *,
    features_only: bool = False,
    out_indices: Sequence[int] | None = None,
    num_classes: int = 0,
    img_size: int | Sequence[int] | None = None,
    in_chans: int = 3,
    drop_path_rate: float = 0.0,
    mixers: MixersConfig | None = None,
    options: Mapping[str, Any] | None = None,
) -> InLineBackbone:
    """A model of :func:`list_backbones`, as a plain torch module; the arguments are timm's.

    Args:
        name: For example inline_swin_tiny.
        pretrained: Weights to start from: a .pth or .safetensors file, ours or the authors'; a folder of
            ``save_pretrained`` or ``tools/publish.py``; or ``user/model`` of the Hugging Face Hub, also
            written ``hf_hub:user/model``.
        img_size: The size that the model was released at if None.

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
    )
    if pretrained is True:
        raise UserError(
            'pretrained=True: no weights come with the package; give a file, a folder or a model of the '
            f"Hugging Face Hub (tools/convert_checkpoint.py {released.name} OUT.pth fetches the authors')"
        )
    if pretrained:
        model.load_weights(pretrained)
    return model


def find_weights(source: str, **download: Any) -> Path:
    """The file of weights that a path, a folder or a name on the Hugging Face Hub stands for.

    ``download`` are options of ``hf_hub_download``.
    """
    prefix, name = _split_prefix(source)
    path = Path(source)
    if not prefix and path.is_dir():
        return path / _choose([file.name for file in path.iterdir()], source)
    if not prefix and (path.suffix or path.exists() or not _may_be_on_hub(source)):
        return path
    try:
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.errors import HFValidationError, RemoteEntryNotFoundError
    except ImportError as error:
        raise UserError(
            f'{source!r} is no file, and to fetch it from the Hugging Face Hub takes: '
            'pip install huggingface_hub'
        ) from error
    try:
        try:
            return Path(hf_hub_download(name, WEIGHTS_NAME, **download))
        except RemoteEntryNotFoundError:
            asked = {key: value for key, value in download.items() if key in ('revision', 'token')}
            files = HfApi().list_repo_files(name, **asked)
        return Path(hf_hub_download(name, _choose(files, source), **download))
    except (HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f'{source!r} is no file here, and as a model of the Hugging Face Hub cannot be fetched: {reason}'
        ) from error


def _split_prefix(source: str) -> tuple[str, str]:
    """What marks a name of the Hub, or nothing, and the name."""
    prefix = next((prefix for prefix in HUB_PREFIXES if source.startswith(prefix)), '')
    return prefix, source.removeprefix(prefix)


def _may_be_on_hub(name: str) -> bool:
    """Whether it is written user/model, and not in a folder that is here."""
    return name.count('/') == 1 and not name.startswith(('/', '.', '~')) and not Path(name).parent.is_dir()


def _choose(files: Sequence[str], source: str) -> str:
    if WEIGHTS_NAME in files:
        return WEIGHTS_NAME
    for suffix in (SUFFIX, '.pth'):
        found = [file for file in files if file.endswith(suffix)]
        if len(found) == 1:
            return found[0]
    raise UserError(f'{source!r} has no {WEIGHTS_NAME}, nor exactly one {SUFFIX} or .pth file')


def _last_stage(arch: str | Mapping[str, Any]) -> int:
    """Counted from 0; all archs that have a name have four stages."""
    depths = arch.get('depths') if isinstance(arch, Mapping) else None
    return max(len(depths), 1) - 1 if isinstance(depths, list | tuple) else 3


def _find(name: str) -> OfficialModel:
    known = name.replace('-', '_')
    if known not in NAMES:
        close = difflib.get_close_matches(known, NAMES) or list(NAMES)
        raise UserError(f'unknown backbone {name!r}: did you mean {", ".join(close)}?')
    return NAMES[known]
