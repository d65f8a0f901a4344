"""Training state in a checkpoint that does not fit the run is refused before it is used."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.optim.scheduler import MultiStepLR

from inline.engine.hooks.checkpoint import AtomicCheckpointHook
from inline.engine.training_state import check_progress, check_training_state
from inline.utils.errors import UserError


def make_runner() -> Any:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    wrapper = OptimWrapper(optimizer)
    scheduler = MultiStepLR(wrapper, milestones=[2, 4])
    return SimpleNamespace(model=model, optim_wrapper=wrapper, param_schedulers=[scheduler], _resume=True)


def make_checkpoint(runner: Any) -> dict[str, Any]:
    return copy.deepcopy(
        {
            'state_dict': runner.model.state_dict(),
            'message_hub': {'log_scalars': {}, 'runtime_info': {'best_score': 0.5}, 'resumed_keys': {}},
            'optimizer': runner.optim_wrapper.state_dict(),
            'param_schedulers': [scheduler.state_dict() for scheduler in runner.param_schedulers],
        }
    )


def set_state(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content['optimizer']['state'][0].update({key: value})


def set_group(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content['optimizer']['param_groups'][0].update({key: value})


def set_scheduler(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content['param_schedulers'][0].update({key: value})


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    'small state': (
        set_state('exp_avg', torch.zeros(2)),
        r"'exp_avg' of parameter 0 is \(2,\), must be that of the parameter, \(2, 3\)",
    ),
    # The fused kernel would write beyond its end.
    'one number': (set_state('exp_avg', torch.zeros(())), r'is \(\), must be that of the parameter'),
    'Python number': (set_state('exp_avg', 1.0), r'is 1\.0, must be a tensor'),
    'large state': (set_state('exp_avg_sq', torch.zeros(200, 3)), r'is \(200, 3\), must be'),
    'transposed state': (set_state('exp_avg', torch.zeros(3, 2)), r'is \(3, 2\), must be'),
    'several steps': (set_state('step', torch.zeros(2)), r'is \(2,\), must have one element'),
    'missing state': (
        lambda content: content['optimizer']['state'][0].pop('exp_avg'),
        r"is \['exp_avg_sq', 'step'\], must be step, exp_avg, exp_avg_sq",
    ),
    'integers': (
        set_state('exp_avg', torch.zeros(2, 3, dtype=torch.int64)),
        r'is torch\.int64, the parameter',
    ),
    'another device': (set_state('exp_avg', torch.zeros(2, 3, device='meta')), 'on cpu'),
    'text': (set_state('step', 'x'), "is 'x', must be a number"),
    'unknown parameter': (
        lambda content: content['optimizer']['state'].update({9: {}}),
        'is 9, must be one of',
    ),
    'groups': (set_group('params', [0]), r'groups of sizes \[1\], this run of sizes \[2\]'),
    'same parameter twice': (set_group('params', [0, 0]), 'must be different numbers'),
    'learning rate': (set_group('lr', 'x'), "lr is 'x', this run has 0.1"),
    'betas': (set_group('betas', (0.9,)), r'betas is \(0\.9,\)'),
    'no groups': (lambda content: content.update(optimizer=[]), 'must be a dict with param_groups and state'),
    'scheduler that hides a method': (set_scheduler('_get_value', 1), "setting is '_get_value', is unknown"),
    'scheduler step': (set_scheduler('last_step', 'x'), "last_step is 'x', this run has"),
    'message hub': (lambda content: content.update(message_hub={}), 'its message hub is {}, must be a dict'),
    'best score': (
        lambda content: content['message_hub']['runtime_info'].update(best_score='x'),
        "best_score is 'x', must be a number",
    ),
}


@pytest.mark.parametrize('case', CHANGES)
def test_state_that_does_not_fit_is_refused_on_resume(case: str) -> None:
    change, message = CHANGES[case]
    runner = make_runner()
    content = make_checkpoint(runner)
    hook = AtomicCheckpointHook(interval=1)
    hook.after_load_checkpoint(runner, content)
    change(content)
    with pytest.raises(UserError, match=f'^the checkpoint cannot be resumed: .*{message}'):
        hook.after_load_checkpoint(runner, content)


def test_several_optimizers_are_checked() -> None:
    runner = make_runner()
    content = make_checkpoint(runner)
    content['optimizer'] = {'a': content['optimizer']}
    runner.optim_wrapper = OptimWrapperDict(a=runner.optim_wrapper)
    check_training_state(runner, content)
    content['optimizer']['a']['state'][0]['exp_avg'] = torch.zeros(2)
    with pytest.raises(UserError, match=r'the optimizer state of a: .* is \(2,\), must be'):
        check_training_state(runner, content)


def test_scalars_and_old_types_are_accepted() -> None:
    """Steps are tensors or numbers, and state may be kept in another precision."""
    runner = make_runner()
    content = make_checkpoint(runner)
    content['optimizer']['state'][0].update(step=3, exp_avg=torch.zeros(2, 3, dtype=torch.bfloat16))
    content['optimizer']['state'][1].update(step=torch.ones(1))
    check_training_state(runner, content)


@pytest.mark.parametrize(
    ('name', 'settings'),
    [
        ('Adafactor', {}),
        ('AdamW', {'amsgrad': True}),
        ('ASGD', {}),
        ('NAdam', {}),
        ('RMSprop', {'momentum': 0.9, 'centered': True}),
        ('SGD', {'lr': 0.1, 'momentum': 0.9}),
    ],
)
def test_own_state_of_every_optimizer_is_accepted(name: str, settings: dict[str, Any]) -> None:
    runner = make_runner()
    optimizer = getattr(torch.optim, name)(runner.model.parameters(), **settings)
    optimizer.step(lambda: runner.model(torch.ones(1, 3)).sum())
    runner.optim_wrapper = OptimWrapper(optimizer)
    check_training_state(runner, {**make_checkpoint(runner), 'param_schedulers': []})


@pytest.mark.parametrize(('name', 'value'), [('epoch', 'x'), ('iter', -1), ('seed', 2**70), ('iter', None)])
def test_progress_is_a_number(name: str, value: Any, tmp_path: Path) -> None:
    meta = {'epoch': 1, 'iter': 2, 'seed': None}
    check_progress(meta, str(tmp_path))
    with pytest.raises(UserError, match=f'cannot be resumed: its {name} is'):
        check_progress({**meta, name: value}, str(tmp_path))
