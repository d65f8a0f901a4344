"""Reading a checkpoint: every entry point gets its weights from :func:`read_checkpoint`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from inline.checkpoints.layouts import find_unsupported
from inline.checkpoints.official import OfficialModel, convert_official, is_official
from inline.checkpoints.plain_data import RefusedError, check_dense
from inline.checkpoints.pretrained_cfg import (
    META_KEY,
    PretrainedCfg,
    parse_pretrained_cfg,
    pretrained_cfg_of_config,
)
from inline.checkpoints.safetensors_format import is_safetensors, read_safetensors
from inline.checkpoints.softmax_models import CONVERTED_KEY, Conversion, convert_softmax
from inline.checkpoints.sources import check_checkpoint, locate_checkpoint
from inline.checkpoints.state_dict import StateDict, shorten, strip_prefix, subset
from inline.checkpoints.torch_format import load_torch
from inline.checkpoints.unpickling import NotPlainDataError
from inline.utils.arguments import format_value
from inline.utils.errors import UserError, printable

# Keys under which training scripts store the weights, in order of preference: EMA first.
WEIGHT_KEYS = ('state_dict_ema', 'model', 'state_dict')


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Args:
        source: Path, URL or name as the user gave it.
        state_dict: Weights under our names.
        meta: Metadata of the training run: ``cfg``, ``dataset_meta``, ``epoch``, …; may be empty.
        content: Everything in the file; ``state_dict`` and ``meta`` are the two above.
        is_ema: Whether the weights are an exponential moving average.
        official: The released model that the weights were converted from, if they were.
        converted: The conversion from a plain DeiT, PVT, Swin or CSwin of another project, if there was one.
    """

    source: str
    state_dict: StateDict
    meta: dict[str, Any]
    content: dict[str, Any]
    is_ema: bool = False
    official: OfficialModel | None = None
    converted: Conversion | None = None

    @property
    def dataset_meta(self) -> Mapping[str, Any]:
        """Classes and palette of the training dataset; empty if the file does not contain them."""
        found = self.meta.get('dataset_meta')
        meta = dict(found) if isinstance(found, Mapping) else {}
        names = meta.get('classes')
        if names is not None:
            if not isinstance(names, list | tuple) or not all(isinstance(name, str | int) for name in names):
                raise UserError(
                    f'checkpoint {self.source!r}: its classes are {format_value(names)}, '
                    'must be a list of names'
                )
            meta['classes'] = type(names)(printable(str(name)) for name in names)
        if not _is_palette(meta.get('palette')):
            meta.pop('palette', None)
        return meta

    @property
    def pretrained_cfg(self) -> PretrainedCfg | None:
        """Mean, std, image size and classes of the weights; None if the file does not contain them."""
        stored = self.meta.get(META_KEY)
        if isinstance(stored, Mapping):
            return parse_pretrained_cfg(stored, f'checkpoint {self.source!r}')
        if self.official is not None:
            return self.official.pretrained_cfg
        names = [str(name) for name in self.dataset_meta.get('classes') or ()]
        return pretrained_cfg_of_config(str(self.meta.get('cfg', '')), names)

    def identify(self) -> str:
        """Return what the weights are: ours, or the model that they were converted from.

        Raises:
            UserError: If they are neither.
        """
        if self.official is not None:
            return self.official.name
        if self.converted is not None:
            return self.converted.model.layout.title
        if any(name.startswith('backbone.') and '.mixer.' in name for name in self.state_dict):
            return 'our weights'
        unsupported = find_unsupported(self.state_dict)
        found = f'it looks like {unsupported}' if unsupported else f'the names are {shorten(self.state_dict)}'
        raise UserError(
            f'{self.source!r} contains neither our weights nor those of a model that can be converted: '
            f'{found}'
        )


def read_checkpoint(
    source: str | Path, map_location: Any = 'cpu', convert_softmax_models: bool = False
) -> Checkpoint:
    """Read weights without running any code in the file.

    Args:
        source: A .pth or .safetensors file, a folder of ``tools/publish.py`` or ``save_pretrained``, a URL
            (http, https or file), ``user/model`` on the Hugging Face Hub, or the name of weights in the
            package. The file may be a training checkpoint, a plain state dict, or one that the authors
            released; the latter is converted. A prefix ``module.`` is removed. If the file has EMA weights,
            these are returned.
        map_location: As in :func:`torch.load`.
        convert_softmax_models: Whether to convert the weights of a plain DeiT, ViT, PVT, Swin or CSwin of
            timm, mmpretrain, mmdet or the official repositories to our names, for one of our backbones. Not
            for the models of those projects.
    """
    return as_checkpoint(read_file(source, map_location), source, convert_softmax_models)


def read_file(source: Any, map_location: Any = 'cpu') -> Any:
    """Return the content of a .pth or .safetensors file, without running any code in it.

    Args:
        source: As in :func:`read_checkpoint`, or a binary file object.
        map_location: As in :func:`torch.load`.
    """
    if not isinstance(source, str | Path):
        return _load(source, 'from memory', map_location)
    check_checkpoint(source)
    return _load(locate_checkpoint(source), repr(str(source)), map_location)


def as_checkpoint(content: Any, source: str | Path, convert_softmax_models: bool = False) -> Checkpoint:
    """Find and convert the weights in the content of a file; see :func:`read_checkpoint`."""
    key, state_dict = _find_state_dict(content, source)
    meta = content.get('meta')
    meta = dict(meta) if isinstance(meta, Mapping) else {}
    official = converted = None
    try:
        if is_official(state_dict):
            official, state_dict = convert_official(state_dict)
            meta |= {'model': official.name, 'img_size': official.img_size}
        elif convert_softmax_models:
            converted = convert_softmax(state_dict)
    except UserError as error:
        raise UserError(f'checkpoint {str(source)!r} cannot be converted: {error}') from error
    if converted is not None:
        state_dict = converted.state_dict
        meta |= {CONVERTED_KEY: converted.model.config()}
    rest = {} if key is None else content
    return Checkpoint(
        source=str(source),
        state_dict=state_dict,
        meta=meta,
        content={**rest, 'meta': meta, 'state_dict': state_dict},
        # MMEngine saves the EMA as state_dict and the weights of the optimizer as ema_state_dict.
        is_ema=key == 'state_dict_ema' or 'ema_state_dict' in content,
        official=official,
        converted=converted,
    )


def _find_state_dict(content: Any, source: str | Path) -> tuple[str | None, StateDict]:
    """Return the weights and the key under which they are stored, None for a plain state dict."""
    if isinstance(content, Mapping):
        for key in WEIGHT_KEYS:
            nested = content.get(key)
            if isinstance(nested, Mapping) and any(isinstance(value, Tensor) for value in nested.values()):
                return key, strip_prefix(_tensors(nested, source), 'module.')
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return None, strip_prefix(_tensors(content, source), 'module.')
    raise UserError(
        f'checkpoint {str(source)!r} contains no weights: expected tensors under one of '
        f'{", ".join(WEIGHT_KEYS)}, or a plain state dict'
    )


def _tensors(state_dict: Mapping[Any, Any], source: str | Path) -> StateDict:
    tensors = subset(state_dict, lambda name: isinstance(state_dict[name], Tensor))
    for name, tensor in tensors.items():
        check_dense(name, tensor, str(source))
    return tensors


def _is_palette(value: Any) -> bool:
    """Return whether `value` is a list or array of colours; some datasets have a string instead."""
    rows = value.tolist() if hasattr(value, 'tolist') else value
    return isinstance(rows, list | tuple) and all(
        isinstance(row, list | tuple) and len(row) == 3 and all(isinstance(part, int | float) for part in row)
        for row in rows
    )


def _load(file: Any, name: str, map_location: Any) -> Any:
    with _one_line_errors(f'checkpoint {name}'):
        if is_safetensors(file):
            return read_safetensors(file, map_location)
        return load_torch(file, map_location)


@contextmanager
def _one_line_errors(checkpoint: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f'{checkpoint} requires the package safetensors: pip install safetensors') from error
    except OSError as error:
        # Errors while opening have a file name. Others are offsets beyond the end of a truncated file.
        reason = (error.strerror or error) if error.filename else 'it is damaged or not a checkpoint'
        raise UserError(f'{checkpoint} cannot be read: {reason}') from error
    except NotPlainDataError as error:
        raise UserError(
            f'{checkpoint} contains {error.name}, which is not plain data; it was not loaded: if you '
            'trust its source, --trust-checkpoint of tools/train.py, test.py, predict.py or export.py '
            'loads it and runs the code in it'
        ) from error
    except RefusedError as error:
        raise UserError(f'{checkpoint} cannot be loaded: {error}') from error
    except Exception as error:
        # Damaged bytes cause all kinds of errors while unpickling.
        raise UserError(f'{checkpoint} cannot be read: it is damaged or not a checkpoint') from error
