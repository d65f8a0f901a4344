"""Non-finite losses: stop before the weights are damaged, and dump the step for ``tools/train.py --replay``.

Only the loss counts. In mixed precision the loss scaler handles gradients that overflow: it skips the step.

A dump holds the weights, the batch and the random states before the step, which determine the loss and all
gradients. The optimizer state is not needed, because such a step never reaches the optimizer.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object, all_reduce, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.model import BaseModel, is_model_wrapper
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from inline.checkpoints import read_file
from inline.registry import HOOKS
from inline.utils.atomic import atomic_file
from inline.utils.errors import UserError
from inline.utils.resources import format_tool

_SHOWN_IMAGES = 16
# Key of the count in the message hub, which is saved in checkpoints, so a resumed run continues the count.
_SKIPPED = 'skipped_nonfinite'

_FORMAT = 'inline step 1'
_CLASS_KEY = '__kind__'
# Modules of the classes that a batch may contain. A dump can refer only to these: importing an arbitrary name
# from a file would execute code.
_MODULES = {
    'BaseDataElement': 'mmengine.structures',
    'InstanceData': 'mmengine.structures',
    'LabelData': 'mmengine.structures',
    'PixelData': 'mmengine.structures',
    'DataSample': 'mmpretrain.structures',
    'MultiTaskDataSample': 'mmpretrain.structures',
    'DetDataSample': 'mmdet.structures',
    'HorizontalBoxes': 'mmdet.structures.bbox',
    'BitmapMasks': 'mmdet.structures.mask',
    'PolygonMasks': 'mmdet.structures.mask',
    'SegDataSample': 'mmseg.structures',
}


@HOOKS.register_module()
class NonFiniteLossHook(Hook):
    """Stop training at a non-finite loss, or skip up to `skip` such steps.

    The loss is checked between the backward pass and the optimizer step, and all ranks share the result. On
    a GPU the flag is copied during the backward pass, so that the check never synchronizes. A skipped step
    changes nothing but the random states: gradients are zeroed, including those accumulated over earlier
    batches, and buffers are restored.

    Args:
        skip: Number of steps that may be skipped in a run.
    """

    # Last of the hooks before a step, so that no other hook draws random numbers after the snapshot.
    priority = 'LOWEST'

    def __init__(self, skip: int = 0) -> None:
        if not isinstance(skip, int) or isinstance(skip, bool) or skip < 0:
            raise UserError(f'skip_nonfinite={skip!r}: must be a number of steps, an integer >= 0')
        self.skip = skip

    def before_train(self, runner: Runner) -> None:
        self._model = unwrap_model(runner.model)
        self._buffers = _BufferSnapshot(self._model)
        self._device = next(self._model.parameters()).device.type
        self._losses: Mapping[str, Any] = {}
        self._handle = self._model.register_forward_hook(self._record_losses)
        wrapper = runner.optim_wrapper
        backward, update = wrapper.backward, wrapper.update_params

        def checked_backward(loss: Tensor, **options: Any) -> None:
            flag = _NonFiniteFlag(loss)
            backward(loss, **options)
            if flag.is_set():
                raise _NonFiniteLossError

        def update_or_skip(loss: Tensor, *args: Any, **options: Any) -> None:
            try:
                update(loss, *args, **options)
            except _NonFiniteLossError:
                self._skip_or_stop(runner, loss)
            self._losses = {}

        wrapper.backward, wrapper.update_params = checked_backward, update_or_skip

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002 (MMEngine's signature)
        self._batch = data_batch
        self._buffers.save()
        self._random_states = get_random_states(self._device)

    def after_train(self, runner: Runner) -> None:
        self._handle.remove()
        del runner.optim_wrapper.backward, runner.optim_wrapper.update_params

    def _record_losses(self, model: nn.Module, _: Any, output: Any) -> None:
        if model.training and isinstance(output, Mapping):
            self._losses = output

    def _skip_or_stop(self, runner: Runner, loss: Tensor) -> None:
        """Skip the step or raise. All ranks call this together, whichever of them has the loss."""
        skipped = runner.message_hub.runtime_info.get(_SKIPPED, 0)
        stop = skipped >= self.skip
        weights = _full_weights(self._model, self._buffers) if stop else {}
        description = None
        if not torch.isfinite(loss.detach()).all():
            losses = self._loss_values(loss)
            description = self._describe(losses)
            if stop:
                description += f'; {self._dump(runner, weights, losses)}'
        descriptions = [
            (f'rank {rank}: ' if get_world_size() > 1 else '') + text
            for rank, text in enumerate(all_gather_object(description))
            if text is not None
        ]
        message = f'the loss is not finite at step {runner.iter + 1}: {"; ".join(descriptions)}'
        if stop:
            raise UserError(message + (f'; {skipped} such steps were skipped before' if skipped else ''))
        runner.optim_wrapper.zero_grad()
        self._buffers.restore()
        runner.message_hub.update_info(_SKIPPED, skipped + 1)
        runner.logger.warning(f'{message}; skipped, {skipped + 1} of at most {self.skip}')

    def _loss_values(self, loss: Tensor) -> dict[str, float]:
        """Return the loss terms as they are logged, the total last."""
        if not self._losses:
            return {'loss': loss.item()}
        values = {name: value.item() for name, value in self._model.parse_losses(self._losses)[1].items()}
        return {**{name: value for name, value in values.items() if name != 'loss'}, 'loss': values['loss']}

    def _describe(self, losses: dict[str, float]) -> str:
        values = ', '.join(f'{name} {value:g}' for name, value in losses.items())
        images = image_paths(self._batch) or ['unknown']
        more = len(images) - _SHOWN_IMAGES
        names = ', '.join(images[:_SHOWN_IMAGES]) + (f' and {more} more' if more > 0 else '')
        return f'{values}; images: {names}'

    def _dump(self, runner: Runner, weights: dict[str, Tensor], losses: dict[str, float]) -> str:
        """Write the step to the work directory and return a sentence for the error message."""
        rank = f'_rank_{get_rank()}' if get_world_size() > 1 else ''
        path = f'{runner.work_dir}/nonfinite_step_{runner.iter + 1}{rank}.dump'
        try:
            dump = StepDump(
                step=runner.iter + 1,
                rank=get_rank(),
                device=self._device,
                images=image_paths(self._batch),
                losses=losses,
                weights=weights,
                batch=to_plain_data(self._batch),
                random_states=self._random_states,
                config=runner.cfg.pretty_text,
                model_config=model_config_text(runner.cfg),
            )
            write_dump(dump, path)
        except Exception as error:
            # Do not raise: the other ranks wait for this one, and the loss is the more important message.
            return f'the step could not be written to {path} ({error})'
        return f'replay it with {format_tool("train", "train")} CONFIG --replay {path}'


class _NonFiniteLossError(Exception):
    """Leaves MMEngine's ``update_params`` before the optimizer step."""


class _NonFiniteFlag:
    """Whether the loss of any rank is non-finite: computed before the backward pass, read after it."""

    def __init__(self, loss: Tensor) -> None:
        flag = (~torch.isfinite(loss.detach())).any().float()
        all_reduce(flag, 'max')
        self._event: torch.cuda.Event | None = None
        self._flag = flag
        if flag.is_cuda:
            self._flag = torch.empty(flag.shape, pin_memory=True)
            self._flag.copy_(flag, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def is_set(self) -> bool:
        if self._event is not None:
            self._event.synchronize()
        return bool(self._flag)


class _BufferSnapshot:
    """Copies of a model's buffers, such as BatchNorm statistics, which the forward pass changes."""

    def __init__(self, model: nn.Module) -> None:
        persistent = model.state_dict(keep_vars=True)
        self.buffers = {
            name: buffer for name, buffer in model.named_buffers(remove_duplicate=False) if name in persistent
        }
        self.copies = {name: buffer.detach().clone() for name, buffer in self.buffers.items()}

    def save(self) -> None:
        self._copy(self.copies, self.buffers)

    def restore(self) -> None:
        self._copy(self.buffers, self.copies)

    def _copy(self, target: dict[str, Tensor], source: dict[str, Tensor]) -> None:
        # One call per dtype, which is one kernel on a GPU.
        for dtype in {buffer.dtype for buffer in target.values()}:
            names = [name for name, buffer in target.items() if buffer.dtype == dtype]
            torch._foreach_copy_([target[name] for name in names], [source[name] for name in names])


def _full_weights(model: nn.Module, buffers: _BufferSnapshot) -> dict[str, Tensor]:
    """Return all weights, and the buffers before the step. Gathers shards, so all ranks must call it."""
    state = {}
    for name, value in model.state_dict().items():
        value = buffers.copies.get(name, value)
        value = value.full_tensor() if hasattr(value, 'full_tensor') else value
        state[name] = value.detach().cpu().clone()
    return state


def unwrap_model(model: Any) -> BaseModel:
    """Return the model inside wrappers such as DistributedDataParallel."""
    while is_model_wrapper(model):
        model = model.module
    return model


@dataclass(frozen=True)
class StepDump:
    """State before a training step.

    Args:
        step: Number of the step in the log, from 1.
        rank: Rank that had the batch.
        device: 'cpu' or 'cuda'.
        images: Paths of the images in the batch.
        losses: Loss terms of the step.
        weights: State dict of the model.
        batch: Output of the data loader as plain data, see :func:`to_plain_data`.
        random_states: States of the generators of Python, NumPy and torch.
        config: Text of the full config, for information only; it is never executed.
        model_config: Text of the part of the config that the loss depends on.
    """

    step: int
    rank: int
    device: str
    images: list[str]
    losses: dict[str, float]
    weights: dict[str, Tensor]
    batch: Any
    random_states: dict[str, Any]
    config: str
    model_config: str


def write_dump(dump: StepDump, path: str | Path) -> None:
    with atomic_file(path) as temporary:
        torch.save({'format': _FORMAT, **vars(dump)}, temporary)


def read_dump(path: str | Path) -> StepDump:
    """Read a dump without executing anything in it."""
    content = read_file(path)
    if not isinstance(content, Mapping) or content.get('format') != _FORMAT:
        raise UserError(f'{str(path)!r} is not a step dump: use the .dump file named in the error message')
    fields: dict[str, Any] = {field: content.get(field) for field in StepDump.__dataclass_fields__}
    missing = [name for name, value in fields.items() if value is None]
    if missing:
        raise UserError(f'step dump {str(path)!r} is damaged: it has no {", ".join(missing)}')
    return StepDump(**fields)


def to_plain_data(value: Any) -> Any:
    """Convert a batch to tensors, numbers, text and containers; other objects become their repr."""
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    if isinstance(value, Tensor):
        # Clone: torch.save would write the whole storage of a view.
        return value.detach().cpu().clone()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in 'biufc':
        return {_CLASS_KEY: 'ndarray', 'data': torch.from_numpy(np.ascontiguousarray(value))}
    if isinstance(value, Mapping):
        return {key: to_plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [to_plain_data(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    name = type(value).__name__
    if isinstance(value, BaseDataElement):
        fields = {field: getattr(value, field) for field in sorted(value._data_fields)}
        arguments = {'metainfo': to_plain_data(value.metainfo), 'fields': to_plain_data(fields)}
    elif name == 'HorizontalBoxes':
        arguments = {'data': to_plain_data(value.tensor)}
    elif name in ('BitmapMasks', 'PolygonMasks'):
        arguments = {'masks': to_plain_data(value.masks), 'height': value.height, 'width': value.width}
    else:
        arguments = {'description': repr(value)[:200]}
    return {_CLASS_KEY: name, **arguments}


def from_plain_data(value: Any) -> Any:
    """Invert :func:`to_plain_data`."""
    if isinstance(value, list):
        return [from_plain_data(item) for item in value]
    if isinstance(value, tuple):
        return tuple(from_plain_data(item) for item in value)
    if not isinstance(value, Mapping):
        return value
    arguments = {key: from_plain_data(item) for key, item in value.items() if key != _CLASS_KEY}
    if _CLASS_KEY not in value:
        return arguments
    name = value[_CLASS_KEY]
    if name == 'ndarray':
        return arguments['data'].numpy()
    if name not in _MODULES:
        raise UserError(
            f'the batch holds {name}, which a dump cannot restore: supported are {", ".join(_MODULES)}'
        )
    cls = getattr(import_module(_MODULES[name]), name)
    if 'fields' not in arguments:
        return cls(**arguments)
    element = cls(metainfo=arguments['metainfo'])
    for field, content in arguments['fields'].items():
        element.set_field(content, field)
    return element


def image_paths(batch: Any) -> list[str]:
    """Return the paths of all images in a batch, in order."""
    if isinstance(batch, BaseDataElement):
        path = batch.metainfo.get('img_path')
        return [] if path is None else [str(path)]
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return [path for item in batch for path in image_paths(item)]
    return []


def model_config_text(cfg: Config) -> str:
    """Return the part of a config that the loss of a batch depends on."""
    return Config({key: cfg.get(key) for key in ('model', 'data_preprocessor', 'optim_wrapper')}).pretty_text


def get_random_states(device: str) -> dict[str, Any]:
    """Return the states of all generators that a step may draw from."""
    states = {'python': random.getstate(), 'numpy': np.random.get_state(), 'torch': torch.get_rng_state()}
    return states | ({'cuda': torch.cuda.get_rng_state()} if device == 'cuda' else {})


def set_random_states(states: Mapping[str, Any]) -> None:
    version, numbers, gauss = states['python']
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(states['numpy'])
    torch.set_rng_state(states['torch'])
    if 'cuda' in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states['cuda'])
