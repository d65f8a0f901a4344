"""Sharded training: equal losses, half the memory, checkpoints with full tensors."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from torch import Tensor
from torch.distributed.tensor import DTensor

from inline.utils.errors import UserError
from tests.engine.distributed.ranks import run_ranks
from tests.engine.short_runs import short_run, train

# Both attentions of InLine-Swin, with tables and norms whose first dimension is odd.
BACKBONE = {
    '_delete_': True,
    'type': 'inline.InLineSwin',
    'arch': {
        'embed_dims': (24, 48, 96, 96),
        'depths': (1, 1, 1, 1),
        'num_heads': (3, 3, 6, 6),
        'inline_depths': (1, 1, 1, 0),
    },
    'img_size': 32,
    'out_indices': (3,),
}
SHARDED = 'inline.ShardedRunner'


def make_config(digit_scenes: Path, work_dir: Path) -> Config:
    cfg = short_run('inline-pvt-nano_digits', digit_scenes, work_dir, **{'model.backbone': BACKBONE})
    cfg.merge_from_dict({'runner_type': SHARDED, 'train_cfg.max_iters': 4})
    cfg.default_hooks.checkpoint.update(interval=2, max_keep_ckpts=-1)
    return cfg


def local_bytes(tensors: Iterable[Tensor]) -> int:
    held = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


@pytest.mark.slow
def test_sharded_training_gives_equal_losses_with_half_the_memory(digit_scenes: Path, tmp_path: Path) -> None:
    cfg = make_config(digit_scenes, tmp_path)

    def work(runner_type: str, folder: str, resume_from: Path | None = None) -> dict[str, Any]:
        cfg.merge_from_dict({'runner_type': runner_type, 'work_dir': str(tmp_path / folder)})
        if resume_from is not None:
            cfg.merge_from_dict({'resume': True, 'load_from': str(resume_from)})
        runner, losses = train(cfg, total_batch=4)
        state = runner.optim_wrapper.optimizer.state.values()
        return {
            'losses': [step['loss'] for step in losses],
            'weights': local_bytes(runner.model.parameters()),
            'state': local_bytes(value for held in state for value in held.values()),
        }

    replicated = run_ranks(2, lambda: work('Runner', 'replicated'), tmp_path / 'ranks_replicated')
    sharded = run_ranks(2, lambda: work(SHARDED, 'sharded'), tmp_path / 'ranks_sharded')
    assert len(replicated[0]['losses']) == 4
    for rank in range(2):
        assert sharded[rank]['losses'] == pytest.approx(replicated[0]['losses'], abs=1e-5)
        assert sharded[rank]['weights'] <= 0.55 * replicated[rank]['weights']
        assert sharded[rank]['state'] <= 0.55 * replicated[rank]['state']
    assert sharded[0]['weights'] + sharded[1]['weights'] == replicated[0]['weights'], (
        'each element is on one rank'
    )

    # Checkpoints hold full tensors with the names and order of any other run.
    ours, usual = (
        torch.load(tmp_path / folder / 'iter_2.pth', weights_only=False)
        for folder in ('sharded', 'replicated')
    )
    assert list(ours['state_dict']) == list(usual['state_dict'])
    for name, tensor in usual['state_dict'].items():
        assert type(ours['state_dict'][name]) is Tensor
        torch.testing.assert_close(ours['state_dict'][name], tensor, rtol=0, atol=1e-4, msg=name)
    assert ours['optimizer']['param_groups'] == usual['optimizer']['param_groups']
    for index, held in usual['optimizer']['state'].items():
        for name, tensor in held.items():
            assert type(ours['optimizer']['state'][index][name]) is Tensor
            torch.testing.assert_close(ours['optimizer']['state'][index][name], tensor, rtol=0, atol=1e-4)

    expected = pytest.approx(replicated[0]['losses'][2:], abs=1e-5)
    half = tmp_path / 'sharded' / 'iter_2.pth'
    single = run_ranks(1, lambda: work('Runner', 'single', half), tmp_path / 'ranks_single')
    assert single[0]['losses'] == expected
    half = tmp_path / 'replicated' / 'iter_2.pth'
    again = run_ranks(2, lambda: work(SHARDED, 'again', half), tmp_path / 'ranks_again')
    assert again[0]['losses'] == expected


@pytest.mark.slow
def test_moving_average_is_refused(digit_scenes: Path, tmp_path: Path) -> None:
    def work() -> str:
        cfg = make_config(digit_scenes, tmp_path / 'run')
        cfg.custom_hooks = [{'type': 'EMAHook'}]
        with pytest.raises(UserError) as caught:
            train(cfg, total_batch=4)
        return str(caught.value)

    message = 'ShardedRunner does not support EMAHook: remove it from the config'
    assert run_ranks(2, work, tmp_path / 'ranks') == [message, message]
