"""A loss that is not finite ends training before it spoils the weights, and leaves what it takes to see why.

Only the loss counts. Gradients that overflow in half precision are the loss scaler's business, which drops
such a step by itself.
"""

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object, all_reduce, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.model import BaseModel, is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn

from inline.engine.step_dump import StepDump, image_names, random_states, to_plain, write_dump
from inline.errors import UserError

_SHOWN_IMAGES = 16
# Under this name the count is kept in checkpoints, so that a resumed training goes on counting.
_SKIPPED = 'skipped_nonfinite'


class NonFiniteLossHook(Hook):
    """Stops training at a loss that is not finite, or leaves such a step out up to `skip` times.

    The loss is looked at between backward and the optimizer's step, and all processes learn whether one of
    them has such a loss. On a GPU its flag is copied while backward runs, so that the GPU never waits for
    the processor. A step that is left out changes nothing but the random states: gradients are zeroed, with
    those that were accumulated over earlier batches, and buffers get back the values they had before.

    Args:
        skip: How many steps of a training may be left out.
    """

    # After all others before a step, so that nothing draws random numbers between this and the step.
    priority = 'LOWEST'

    def __init__(self, skip: int = 0) -> None:
        if not isinstance(skip, int) or isinstance(skip, bool) or skip < 0:
            raise UserError(f'skip_nonfinite={skip!r}: must be a whole number of steps, 0 or more')
        self.skip = skip

    def before_train(self, runner: Runner) -> None:
        self._model = _unwrap(runner.model)
        self._buffers = _Buffers(self._model)
        self._device = next(self._model.parameters()).device.type
        self._losses: Mapping[str, Any] = {}
        self._watch = self._model.register_forward_hook(self._keep_losses)
        wrapper = runner.optim_wrapper
        backward, update = wrapper.backward, wrapper.update_params

        def checked_backward(loss: Tensor, **options: Any) -> None:
            flag = _Flag(loss)
            backward(loss, **options)
            if flag.is_set():
                raise _NonFiniteLossError

        def update_or_leave_out(loss: Tensor, *options: Any, **named: Any) -> None:
            try:
                update(loss, *options, **named)
            except _NonFiniteLossError:
                self._leave_out_or_stop(runner, loss)
            self._losses = {}

        wrapper.backward, wrapper.update_params = checked_backward, update_or_leave_out

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002 (MMEngine's)
        self._batch = data_batch
        self._buffers.keep()
        self._random_states = random_states(self._device)

    def after_train(self, runner: Runner) -> None:
        self._watch.remove()
        del runner.optim_wrapper.backward, runner.optim_wrapper.update_params

    def _keep_losses(self, model: nn.Module, _: Any, output: Any) -> None:
        if model.training and isinstance(output, Mapping):
            self._losses = output

    def _leave_out_or_stop(self, runner: Runner, loss: Tensor) -> None:
        """Called by all processes at once, whichever of them has the loss."""
        skipped = runner.message_hub.runtime_info.get(_SKIPPED, 0)
        stop = skipped >= self.skip
        weights = _full_state(self._model, self._buffers) if stop else {}
        here = None
        if not torch.isfinite(loss.detach()).all():
            parts = self._parts(loss)
            here = self._describe(parts) + (f'; {self._dump(runner, weights, parts)}' if stop else '')
        told = [
            (f'rank {rank}: ' if get_world_size() > 1 else '') + text
            for rank, text in enumerate(all_gather_object(here))
            if text is not None
        ]
        message = f'the loss is not finite at step {runner.iter + 1}: {"; ".join(told)}'
        if stop:
            raise UserError(message + (f'; {skipped} such steps were left out before' if skipped else ''))
        runner.optim_wrapper.zero_grad()
        self._buffers.restore()
        runner.message_hub.update_info(_SKIPPED, skipped + 1)
        runner.logger.warning(f'{message}; left out, {skipped + 1} of at most {self.skip}')

    def _parts(self, loss: Tensor) -> dict[str, float]:
        """The loss's parts as they are logged, the sum last."""
        if not self._losses:
            return {'loss': loss.item()}
        parts = {name: value.item() for name, value in self._model.parse_losses(self._losses)[1].items()}
        return {**{name: value for name, value in parts.items() if name != 'loss'}, 'loss': parts['loss']}

    def _describe(self, parts: dict[str, float]) -> str:
        values = ', '.join(f'{name} {value:g}' for name, value in parts.items())
        images = image_names(self._batch) or ['unknown']
        more = len(images) - _SHOWN_IMAGES
        names = ', '.join(images[:_SHOWN_IMAGES]) + (f' and {more} more' if more > 0 else '')
        return f'{values}; images: {names}'

    def _dump(self, runner: Runner, weights: dict[str, Tensor], parts: dict[str, float]) -> str:
        """Write the step to the work directory; the words that tell where."""
        dump = StepDump(
            step=runner.iter + 1,
            rank=get_rank(),
            device=self._device,
            images=image_names(self._batch),
            losses=parts,
            weights=weights,
            batch=to_plain(self._batch),
            random_states=self._random_states,
            config=runner.cfg.pretty_text,
            model_config=model_text(runner.cfg),
        )
        rank = f'_rank_{get_rank()}' if get_world_size() > 1 else ''
        path = f'{runner.work_dir}/nonfinite_step_{runner.iter + 1}{rank}.dump'
        try:
            write_dump(dump, path)
        except (OSError, RuntimeError) as error:
            return f'the step could not be written to {path} ({error})'
        return f'run it again with tools/train.py CONFIG --replay {path}'


def model_text(cfg: Config) -> str:
    """The part of a config that the loss of a batch depends on."""
    parts = {key: cfg.get(key) for key in ('model', 'data_preprocessor', 'optim_wrapper')}
    return Config(parts).pretty_text


class _NonFiniteLossError(Exception):
    """Leads out of MMEngine's update past the optimizer's step."""


class _Flag:
    """Whether the loss of any process is not finite, asked before backward and read after it."""

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


class _Buffers:
    """The buffers of a model, such as BatchNorm's statistics, which the forward pass changes."""

    def __init__(self, model: nn.Module) -> None:
        saved = model.state_dict(keep_vars=True)
        self.live = {
            name: buffer for name, buffer in model.named_buffers(remove_duplicate=False) if name in saved
        }
        self.kept = {name: buffer.detach().clone() for name, buffer in self.live.items()}

    def keep(self) -> None:
        self._copy(self.kept, self.live)

    def restore(self) -> None:
        self._copy(self.live, self.kept)

    def _copy(self, to: dict[str, Tensor], of: dict[str, Tensor]) -> None:
        # All of a type in one call, which on a GPU is one kernel.
        for dtype in {buffer.dtype for buffer in to.values()}:
            names = [name for name, buffer in to.items() if buffer.dtype == dtype]
            torch._foreach_copy_([to[name] for name in names], [of[name] for name in names])


def _full_state(model: nn.Module, buffers: _Buffers) -> dict[str, Tensor]:
    """All weights and, from before the step, all buffers. Of shards every process gives its own."""
    state = {}
    for name, value in model.state_dict().items():
        value = buffers.kept.get(name, value)
        value = value.full_tensor() if hasattr(value, 'full_tensor') else value
        state[name] = value.detach().cpu().clone()
    return state


def _unwrap(model: Any) -> BaseModel:
    while is_model_wrapper(model):
        model = model.module
    return model
