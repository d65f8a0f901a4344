"""A step that stopped training, run once more with a look into every module."""

import argparse
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from inline.engine.distributed import adapt_to_hardware
from inline.engine.launch import drop_pretrained, read_config, use_amp
from inline.engine.nonfinite import model_text
from inline.engine.pretrained import compare
from inline.engine.step_dump import StepDump, from_plain, read_dump, set_random_states
from inline.errors import UserError


@dataclass
class Findings:
    """What a step gave, and where it first was not finite.

    Args:
        losses: The loss's parts as they are logged.
        weights: Names of weights and buffers that are not finite before the step.
        inputs: Whether all inputs are finite after preprocessing.
        module: The first module whose output is not finite, in the order in which they end.
        module_input: Whether what that module was given is finite.
        gradient: The first parameter whose gradient is not finite, from the loss backwards.
    """

    losses: dict[str, float] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)
    inputs: bool = True
    module: str | None = None
    module_input: bool = True
    gradient: str | None = None


def replay(args: argparse.Namespace) -> None:
    """Run the step of ``args.replay`` with the model of ``args.config``, and print what comes out."""
    dump = read_dump(args.replay)
    cfg = read_config(args)
    if args.amp:
        use_amp(cfg)
    cfg.launcher = 'none'
    adapt_to_hardware(cfg)
    device = dump.device if dump.device != 'cuda' or torch.cuda.is_available() else 'cpu'
    # Before the optimizer's part is built, which takes settings out of the config.
    same_config = model_text(cfg) == dump.model_config
    model = _build(cfg, dump).to(device).train()
    findings = run_step(model, build_optim_wrapper(model, cfg.optim_wrapper), dump)
    for line in describe(findings, dump):
        print(line)
    if not same_config:
        print('note: the config differs from the one that training ran with, which the dump holds as text')
    if device != dump.device:
        print(f'note: training ran on {dump.device}, this on {device}: small differences are to be expected')


def run_step(model: BaseModel, optim_wrapper: OptimWrapper, dump: StepDump) -> Findings:
    """Forward and backward of the dumped batch; the optimizer takes no step."""
    findings = Findings(weights=[name for name, value in model.state_dict().items() if not _finite(value)])
    batch = from_plain(dump.batch)
    set_random_states(dump.random_states)
    with _watch(model, findings), optim_wrapper.optim_context(model):
        data = model.data_preprocessor(batch, True)
        findings.inputs = _finite(data['inputs'])
        losses = model(**data, mode='loss')
    loss, parts = model.parse_losses(losses)
    findings.losses = {name: value.item() for name, value in parts.items()}
    if loss.requires_grad:
        loss.backward()
    return findings


def describe(findings: Findings, dump: StepDump) -> Iterator[str]:
    """The findings in lines for the terminal."""
    yield f'step {dump.step} of rank {dump.rank}, {len(dump.images)} images: {", ".join(dump.images)}'
    for name, value in findings.losses.items():
        recorded = dump.losses.get(name, math.nan)
        same = value == recorded or (math.isnan(value) and math.isnan(recorded))
        yield f'{name}: {value!r}' + ('' if same else f' (in training: {recorded!r})')
    weights = findings.weights
    yield f'weights not finite before the step: {_shorten(weights) if weights else "none"}'
    yield f'inputs finite: {"yes" if findings.inputs else "no"}'
    if findings.module is None:
        yield 'first module whose output is not finite: none'
    else:
        given = 'is finite' if findings.module_input else 'is not finite either'
        yield f'first module whose output is not finite: {findings.module} (its input {given})'
    yield f'first gradient that is not finite, from the loss backwards: {findings.gradient or "none"}'


def _build(cfg: Config, dump: StepDump) -> BaseModel:
    """The config's model with the dump's weights, all of which must fit."""
    init_default_scope(cfg.default_scope)
    drop_pretrained(cfg.model)
    cfg.model.pop('pretrained', None)
    if cfg.get('data_preprocessor') is not None:
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    model = revert_sync_batchnorm(MODELS.build(cfg.model))
    fit = compare(model, dump.weights)
    if fit.missing or fit.misshapen or fit.unused:
        raise UserError(f'the dump is of another model than the config: {fit.describe()}')
    model.load_state_dict(dump.weights)
    return model


@contextmanager
def _watch(model: nn.Module, findings: Findings) -> Iterator[None]:
    """Note the first output and, for a later backward, the first gradient that is not finite."""

    def look(name: str, given: Any, output: Any) -> None:
        if findings.module is None and not _finite(output):
            findings.module, findings.module_input = name, _finite(given)

    def look_back(name: str, gradient: Tensor) -> None:
        if findings.gradient is None and not _finite(gradient):
            findings.gradient = name

    handles = []
    for name, module in model.named_modules():
        kind = f'{name or "the model"} ({type(module).__name__})'
        handles.append(module.register_forward_hook(lambda _, x, y, kind=kind: look(kind, x, y)))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient, name=name: look_back(name, gradient))
    yield
    for handle in handles:
        handle.remove()


def _finite(value: Any) -> bool:
    """Whether all floating-point numbers of tensors in nested containers are finite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        value = list(value.values())
    return all(_finite(item) for item in value) if isinstance(value, list | tuple) else True


def _shorten(names: list[str], shown: int = 3) -> str:
    more = len(names) - shown
    return ', '.join(names[:shown]) + (f' and {more} more' if more > 0 else '')
