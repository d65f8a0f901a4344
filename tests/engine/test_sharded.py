"""Training with the weights shared out over processes: same losses, half the memory, whole checkpoints."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmpretrain.registry import MODELS
from torch import Tensor
from torch.distributed.tensor import DTensor

from inline.engine.safe_loading import load_safely
from inline.errors import UserError
from tests.engine.ranks import run_ranks
from tests.engine.short_runs import short_run, train

# Both attentions of InLine-Swin, and tables and norms whose first side two does not divide.
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
def test_shared_weights_train_alike_in_half_the_memory_and_go_on_anywhere(
    digit_scenes: Path, tmp_path: Path
) -> None:
    cfg = make_config(digit_scenes, tmp_path)

    def work(runner_type: str, folder: str, go_on_from: Path | None = None) -> dict[str, Any]:
        cfg.merge_from_dict({'runner_type': runner_type, 'work_dir': str(tmp_path / folder)})
        if go_on_from is not None:
            cfg.merge_from_dict({'resume': True, 'load_from': str(go_on_from)})
        runner, losses = train(cfg, total_batch=4)
        state = runner.optim_wrapper.optimizer.state.values()
        return {
            'losses': [step['loss'] for step in losses],
            'weights': local_bytes(runner.model.parameters()),
            'state': local_bytes(value for held in state for value in held.values()),
        }

    copied = run_ranks(2, lambda: work('Runner', 'copied'), tmp_path / 'ranks_copied')
    shared = run_ranks(2, lambda: work(SHARDED, 'shared'), tmp_path / 'ranks_shared')
    assert len(copied[0]['losses']) == 4
    for rank in range(2):
        assert shared[rank]['losses'] == pytest.approx(copied[0]['losses'], abs=1e-5)
        assert shared[rank]['weights'] <= 0.55 * copied[rank]['weights']
        assert shared[rank]['state'] <= 0.55 * copied[rank]['state']
    assert shared[0]['weights'] + shared[1]['weights'] == copied[0]['weights'], 'each number has one owner'

    # Whole checkpoints with the names, shapes and order of any other run.
    ours, usual = (
        torch.load(tmp_path / folder / 'iter_2.pth', weights_only=False) for folder in ('shared', 'copied')
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

    expected = pytest.approx(copied[0]['losses'][2:], abs=1e-5)
    half = tmp_path / 'shared' / 'iter_2.pth'
    alone = run_ranks(1, lambda: work('Runner', 'alone', half), tmp_path / 'ranks_alone')
    assert alone[0]['losses'] == expected
    half = tmp_path / 'copied' / 'iter_2.pth'
    again = run_ranks(2, lambda: work(SHARDED, 'again', half), tmp_path / 'ranks_again')
    assert again[0]['losses'] == expected


@pytest.mark.slow
def test_swin_base_takes_half_of_its_weights_each(digit_scenes: Path, tmp_path: Path) -> None:
    cfg = make_config(digit_scenes, tmp_path / 'run')
    cfg.merge_from_dict({'train_cfg.max_iters': 1, 'model.head.in_channels': 1024})
    cfg.model.backbone.update(arch='base', img_size=64)
    cfg.default_hooks.checkpoint.update(interval=1, save_optimizer=False)

    def work() -> tuple[int, float]:
        runner, losses = train(cfg, total_batch=2)
        return local_bytes(runner.model.backbone.parameters()), losses[0]['loss']

    shares = run_ranks(2, work, tmp_path / 'ranks')
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(cfg.model)
    whole = local_bytes(model.backbone.parameters())
    assert whole > 4 * 86_000_000
    for held, loss in shares:
        assert held <= 0.55 * whole
        assert math.isfinite(loss)
    model.load_state_dict(load_safely(tmp_path / 'run' / 'iter_1.pth')['state_dict'])
    assert all(weight.isfinite().all() for weight in model.parameters())


def test_a_moving_average_of_shared_weights_is_refused(digit_scenes: Path, tmp_path: Path) -> None:
    def work() -> str:
        cfg = make_config(digit_scenes, tmp_path / 'run')
        cfg.custom_hooks = [{'type': 'EMAHook'}]
        with pytest.raises(UserError) as caught:
            train(cfg, total_batch=4)
        return str(caught.value)

    told = 'ShardedRunner keeps no moving average of weights: remove the EMAHook of the config'
    assert run_ranks(2, work, tmp_path / 'ranks') == [told, told]
