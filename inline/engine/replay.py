"""Replay of a dumped training step: find the first module and gradient that are not finite."""

import argparse
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import init_default_scope
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from inline.checkpoints import compare_state_dict
from inline.engine.distributed.setup import adapt_to_hardware
from inline.engine.hooks.nonfinite import (
    StepDump,
    from_plain_data,
    model_config_text,
    read_dump,
    set_random_states,
)
from inline.engine.launch import build_untrained_model, read_config, use_amp
from inline.models.layers import ignore_global_hooks
from inline.utils.errors import UserError

_SHOWN_WEIGHTS = 3


@dataclass
class ReplayReport:
    """Losses of a replayed step, and where the first non-finite values appeared.

    Attributes:
        losses: Loss terms as they are logged.
        weights: Names of weights and buffers that were not finite before the step.
        finite_inputs: Whether all inputs were finite after preprocessing.
        module: First module with a non-finite output, in the order in which modules finish.
        finite_module_input: Whether the inputs of that module were finite.
        gradient: First parameter with a non-finite gradient in the backward pass.
    """

    losses: dict[str, float] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)
    finite_inputs: bool = True
    module: str | None = None
    finite_module_input: bool = True
    gradient: str | None = None


def replay(args: argparse.Namespace) -> None:
    """Run the step dumped in ``args.replay`` with the model of ``args.config`` and print a report."""
    dump = read_dump(args.replay)
    cfg = read_config(args)
    if args.amp:
        use_amp(cfg)
    cfg.launcher = 'none'
    adapt_to_hardware(cfg)
    device = dump.device if dump.device != 'cuda' or torch.cuda.is_available() else 'cpu'
    # Compare before the optimizer is built, which removes keys from the config.
    same_config = model_config_text(cfg) == dump.model_config
    model = _build_model(cfg, dump).to(device).train()
    report = run_step(model, build_optim_wrapper(model, cfg.optim_wrapper), dump)
    for line in format_report(report, dump):
        print(line)
    if not same_config:
        print('note: the config differs from that of the training, whose text is in the dump')
    if device != dump.device:
        print(f'note: the training ran on {dump.device}, the replay on {device}: expect small differences')


def run_step(model: BaseModel, optim_wrapper: OptimWrapper, dump: StepDump) -> ReplayReport:
    """Run forward and backward pass of the dumped batch, without an optimizer step."""
    report = ReplayReport(weights=[name for name, value in model.state_dict().items() if not _finite(value)])
    batch = from_plain_data(dump.batch)
    set_random_states(dump.random_states)
    with _record_nonfinite(model, report), optim_wrapper.optim_context(model):
        data = model.data_preprocessor(batch, True)
        report.finite_inputs = _finite(data['inputs'])
        losses = model(**data, mode='loss')
    loss, terms = model.parse_losses(losses)
    report.losses = {name: value.item() for name, value in terms.items()}
    if loss.requires_grad:
        loss.backward()
    return report


def format_report(report: ReplayReport, dump: StepDump) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f'step {dump.step} of rank {dump.rank}, {len(dump.images)} images: {", ".join(dump.images)}'
    for name, value in report.losses.items():
        recorded = dump.losses.get(name, math.nan)
        same = value == recorded or (math.isnan(value) and math.isnan(recorded))
        yield f'{name}: {value!r}' + ('' if same else f' (in training: {recorded!r})')
    shown, more = report.weights[:_SHOWN_WEIGHTS], len(report.weights) - _SHOWN_WEIGHTS
    names = ', '.join(shown) + (f' and {more} more' if more > 0 else '')
    yield f'non-finite weights before the step: {names or "none"}'
    yield f'inputs finite: {"yes" if report.finite_inputs else "no"}'
    module = report.module or 'none'
    if report.module is not None:
        module += f' (its input is {"finite" if report.finite_module_input else "not finite either"})'
    yield f'first module with a non-finite output: {module}'
    yield f'first non-finite gradient in the backward pass: {report.gradient or "none"}'


def _build_model(cfg: Config, dump: StepDump) -> BaseModel:
    """Build the model of the config with the weights of the dump, all of which must match."""
    init_default_scope(cfg.default_scope)
    model = build_untrained_model(cfg)
    report = compare_state_dict(model, dump.weights)
    if not report.exact:
        raise UserError(f'the dump does not match the model of the config: {report.describe()}')
    model.load_state_dict(dump.weights)
    return model


@contextmanager
def _record_nonfinite(model: nn.Module, report: ReplayReport) -> Iterator[None]:
    """Record the first non-finite module output and, in a later backward pass, the first such gradient."""

    names = {module: name or 'the model' for name, module in model.named_modules()}

    def check_output(module: nn.Module, inputs: Any, output: Any) -> None:
        if report.module is None and module in names and not _finite(output):
            report.module = f'{names[module]} ({type(module).__name__})'
            report.finite_module_input = _finite(inputs)

    def check_gradient(name: str, gradient: Tensor) -> None:
        if report.gradient is None and not _finite(gradient):
            report.gradient = name

    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient, name=name: check_gradient(name, gradient))
    # A hook on a module disables its fast path, which rounds differently. The replay must not.
    handle = register_module_forward_hook(check_output)
    with ignore_global_hooks():
        yield
    handle.remove()


def _finite(value: Any) -> bool:
    """Return whether all floating-point tensors in nested containers are finite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        value = list(value.values())
    return all(_finite(item) for item in value) if isinstance(value, list | tuple) else True
