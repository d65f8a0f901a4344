"""Non-finite losses: training stops with a full report, steps can be skipped, and a dump can be replayed."""

import os
import re
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.runner import Runner
from mmengine.structures import InstanceData, PixelData
from torch import Tensor, nn

from inline.checkpoints import read_file
from inline.commands import train
from inline.engine.hooks.nonfinite import NonFiniteLossHook, from_plain_data, read_dump, to_plain_data
from inline.models.layers.fused_linear import ONEDNN_FROM
from inline.ops.products import HAS_ONEDNN
from inline.utils import errors
from inline.utils.errors import UserError, exit_on_user_error
from tests.conftest import ROOT, run_tool
from tests.engine.hooks.poison import RecordStates

CLASSIFIER = ROOT / 'configs/digits_quick/inline-pvt-nano_digits.py'
RETINANET = ROOT / 'configs/digits_quick/retinanet_inline-pvt-nano_digits.py'
MASK_RCNN = ROOT / 'configs/digits/mask-rcnn_inline-pvt-micro_digits.py'
SEMANTIC_FPN = ROOT / 'configs/digits_quick/semantic-fpn_inline-pvt-nano_digits.py'
LABEL_SMOOTHING = "dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original', num_classes=10)"
POISONED_L1 = "dict(_delete_=True, type='PoisonedLoss', inner=dict(type='L1Loss'), at=AT)"
# Config, loss to poison, number of its call, and another term of the logged loss.
CASES: dict[str, tuple[Path, str, int, str]] = {
    'classification': (
        CLASSIFIER,
        f"head=dict(loss=dict(_delete_=True, type='PoisonedLoss', inner={LABEL_SMOOTHING}, at=AT))",
        2,
        'loss',
    ),
    'boxes': (
        RETINANET,
        f'bbox_head=dict(loss_bbox={POISONED_L1})',
        # One call for each of the four levels.
        6,
        'loss_cls',
    ),
    'masks': (
        MASK_RCNN,
        f'rpn_head=dict(loss_bbox={POISONED_L1})',
        6,
        'loss_mask',
    ),
    'segmentation': (
        SEMANTIC_FPN,
        "decode_head=dict(loss_decode=dict(_delete_=True, type='PoisonedLoss', "
        "inner=dict(type='CrossEntropyLoss'), at=AT))",
        2,
        'decode.acc_seg',
    ),
}


def call_train(*words: Any) -> None:
    """Run tools/train.py in this process: importing a toolbox takes longer than a few steps."""
    argv = sys.argv
    sys.argv = ['train.py', *(str(word) for word in words)]
    try:
        train.main()
    finally:
        sys.argv = argv


def write_config(folder: Path, base: Path, model: str, steps: int = 3, more: str = '') -> Path:
    """Write a config that trains for a few steps of two images, without validation."""
    path = folder / 'poisoned.py'
    loader = 'dict(batch_size=2, num_workers=0, persistent_workers=False)'
    path.write_text(
        f'_base_ = {str(base)!r}\nmodel = dict({model})\n'
        f'train_dataloader = {loader}\n'
        'val_cfg = val_dataloader = val_evaluator = None\n'
        f"train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters={steps})\n{more}\n"
    )
    return path


@pytest.fixture
def poisoned(tmp_path: Path, digit_scenes: Path) -> Callable[..., list[Any]]:
    """Return a function that gives the command-line arguments of a training run."""

    def words(case: str, *, at: tuple[int, ...] | None = None, more: str = '', **settings: Any) -> list[Any]:
        base, model, call, _ = CASES[case]
        config = write_config(tmp_path, base, model.replace('AT', str(at or (call,))), more=more)
        options = [f'{key}={value}' for key, value in settings.items()]
        common = [config, '--data-root', digit_scenes.parent, '--work-dir', tmp_path / 'run']
        return [*common, *(['--cfg-options', *options] if options else [])]

    return words


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_training_stops_and_the_replay_gives_identical_losses(
    case: str, poisoned: Callable[..., list[Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = poisoned(case)
    with pytest.raises(UserError) as stopped:
        call_train(*words)
    message = str(stopped.value)
    path = tmp_path / 'run' / 'nonfinite_step_2.dump'
    assert message.startswith('the loss is not finite at step 2: ')
    assert f'--replay {path}' in message
    assert 'loss nan' in message
    assert '\n' not in message
    assert not list((tmp_path / 'run').glob('*.pth')), 'no checkpoint with damaged weights'

    dump = read_dump(path)
    assert isinstance(read_file(path), dict)
    assert len(dump.images) == 2
    for name in dump.images:
        assert name in message
        assert Path(name).is_file()
    finite = CASES[case][3]
    assert finite in dump.losses
    assert all(value.isfinite().all() for value in dump.weights.values())

    capsys.readouterr()
    call_train(*words, '--replay', path)
    printed = capsys.readouterr().out
    for name, value in dump.losses.items():
        assert f'{name}: {value!r}\n' in printed
    assert 'in training:' not in printed
    assert 'note:' not in printed
    assert 'first module with a non-finite output: ' in printed
    assert re.search(r'PoisonedLoss\) \(its input is finite\)', printed)
    assert re.search(r'first non-finite gradient in the backward pass: \w+', printed)


@pytest.mark.slow
def test_replay_names_non_finite_weights(digit_scenes: Path, tmp_path: Path) -> None:
    name = 'backbone.stages.1.blocks.0.mlp.fc1.weight'
    hook = (
        "custom_imports = dict(imports=['tests.engine.hooks.poison'])\n"
        f"custom_hooks = [dict(type='mmengine.PoisonWeight', name={name!r})]"
    )
    config = write_config(tmp_path, CLASSIFIER, '', more=hook)
    common = [config, '--data-root', digit_scenes.parent, '--work-dir', tmp_path / 'run']

    stopped = run_tool('tools/train.py', *common)
    assert stopped.returncode == 2, stopped.stderr[-2000:]
    assert 'Traceback' not in stopped.stderr
    assert 'error: the loss is not finite at step 1: loss nan; images: ' in stopped.stderr.splitlines()[-1]
    path = tmp_path / 'run' / 'nonfinite_step_1.dump'
    replayed = run_tool('tools/train.py', *common, '--replay', path)
    assert replayed.returncode == 0, replayed.stderr[-2000:]
    assert f'non-finite weights before the step: {name}\n' in replayed.stdout
    # A linear layer that runs in oneDNN is not called as a module; this one has between 32 and 128 tokens.
    module = 'mlp (Mlp)' if HAS_ONEDNN and ONEDNN_FROM == 32 else 'mlp.fc1 (Linear)'
    assert f'non-finite output: backbone.stages.1.blocks.0.{module} (its input is finite)' in replayed.stdout
    assert 'inputs finite: yes\n' in replayed.stdout

    other = run_tool('tools/train.py', RETINANET, '--data-root', digit_scenes.parent, '--replay', path)
    assert other.returncode == 2
    assert 'error: the dump does not match the model of the config: ' in other.stderr
    torch.save({'state_dict': {}}, tmp_path / 'other.pth')
    no_dump = run_tool('tools/train.py', *common, '--replay', tmp_path / 'other.pth')
    assert no_dump.returncode == 2
    assert "other.pth' is not a step dump" in no_dump.stderr


@pytest.mark.slow
def test_skipped_step_changes_nothing(
    poisoned: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordStates, 'states', [])
    call_train(
        *poisoned(
            'classification',
            more="custom_hooks = [dict(type='RecordStates')]",
            **{'model.head.loss.once': True, 'skip_nonfinite': 1},
        )
    )
    first, second, third = RecordStates.states
    counter = 'head.loss_module.count'
    assert [int(state[counter]) for state in (first, second, third)] == [1, 1, 2], 'buffers are restored, too'
    assert all(torch.equal(first[name], second[name]) for name in first)


def run_two(words: list[Any], folder: Path) -> list[tuple[int, str]]:
    """The training in two processes that are forked from this one: exit codes and what each said."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                log = os.open(folder / f'rank_{rank}.log', os.O_CREAT | os.O_WRONLY)
                os.dup2(log, 1)
                os.dup2(log, 2)
                sys.stdout, sys.stderr = open(1, 'w', closefd=False), open(2, 'w', closefd=False)  # noqa: SIM115
                os.environ |= {
                    'RANK': str(rank),
                    'LOCAL_RANK': str(rank),
                    'WORLD_SIZE': '2',
                    'MASTER_ADDR': '127.0.0.1',
                    'MASTER_PORT': str(port),
                }
                # No launcher ends the other rank.
                errors.RANK_ZERO_SECONDS = 1
                with exit_on_user_error():
                    call_train(*words)
                torch.save(RecordStates.states, folder / f'rank_{rank}.pth')
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return [(code, (folder / f'rank_{rank}.log').read_text()) for rank, code in enumerate(codes)]


@pytest.mark.slow
@pytest.mark.parametrize('more', ['', "runner_type = 'inline.ShardedRunner'"], ids=['replicated', 'sharded'])
def test_two_ranks_stop_together_and_the_affected_one_writes_the_dump(
    more: str, poisoned: Callable[..., list[Any]], tmp_path: Path
) -> None:
    (tmp_path / 'run').mkdir()
    words = poisoned('classification', more=more, **{'model.head.loss.rank': 1})
    (code_0, said), (code_1, _) = run_two([*words[:1], '--launcher', 'pytorch', *words[1:]], tmp_path)
    assert (code_0, code_1) == (2, 2), said[-3000:]
    last = said.strip().splitlines()[-1]
    assert last.startswith('error: the loss is not finite at step 2: rank 1: loss nan; images: ')
    assert 'Traceback' not in said
    assert [path.name for path in (tmp_path / 'run').glob('*.dump')] == ['nonfinite_step_2_rank_1.dump']
    dump = read_dump(tmp_path / 'run' / 'nonfinite_step_2_rank_1.dump')
    assert all(name in last for name in dump.images)
    assert dump.weights['head.fc.weight'].shape == (10, 96), 'full tensors, not shards'
    assert all(value.isfinite().all() for value in dump.weights.values())


@pytest.mark.slow
def test_two_ranks_skip_the_same_step(poisoned: Callable[..., list[Any]], tmp_path: Path) -> None:
    words = poisoned(
        'classification',
        more="custom_hooks = [dict(type='RecordStates')]",
        **{'model.head.loss.rank': 1, 'model.head.loss.once': True, 'skip_nonfinite': 1},
    )
    (code_0, said), (code_1, _) = run_two([*words[:1], '--launcher', 'pytorch', *words[1:]], tmp_path)
    assert (code_0, code_1) == (0, 0), said[-3000:]
    assert re.search(r'not finite at step 2: rank 1: .* skipped, 1 of at most 1', said)
    ranks = [read_file(tmp_path / f'rank_{rank}.pth') for rank in range(2)]
    for one, other in zip(*ranks, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    first, second, third = ranks[0]
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(second[name], third[name]) for name in first)


class Toy(BaseModel):
    """Model with one weight w and a batch norm; the loss is w·x, which is NaN where x is."""

    def __init__(self, weight: float = 1.0, root: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.norm = nn.BatchNorm1d(1)
        self.root = root

    def forward(self, x: Tensor, mode: str) -> dict[str, Tensor]:
        assert mode == 'loss'
        self.norm(x.view(-1, 1))
        return {'loss': (self.weight.sqrt() if self.root else self.weight * x.mean())}


def train_toy(
    batches: list[float],
    folder: Path,
    *,
    skip: int = 0,
    model: Toy | None = None,
    wrapper: dict[str, Any] | None = None,
    resume: str | None = None,
) -> Runner:
    """Train with SGD and learning rate 1 on batches of two equal numbers."""
    loop = {'type': 'IterBasedTrainLoop', 'max_iters': len(batches)}
    settings = {'type': 'OptimWrapper', 'optimizer': {'type': 'SGD', 'lr': 1.0}, **(wrapper or {})}
    runner = Runner(
        model=model or Toy(),
        work_dir=str(folder),
        train_dataloader={
            'dataset': [{'x': torch.tensor(value)} for value in batches for _ in range(2)],
            'batch_size': 2,
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'collate_fn': {'type': 'default_collate'},
        },
        train_cfg=loop,
        optim_wrapper=settings,
        default_hooks={'checkpoint': {'type': 'CheckpointHook', 'by_epoch': False, 'interval': 1}},
        default_scope='mmengine',
        experiment_name=f'toy_{folder.name}_{len(list(folder.iterdir()))}',
        cfg=Config({'model': {}, 'optim_wrapper': settings}),
        load_from=resume,
        resume=resume is not None,
    )
    runner.register_hook(NonFiniteLossHook(skip))
    runner.train()
    return runner


NAN = float('nan')


def test_dump_holds_the_weights_before_the_step(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='not finite at step 3: loss nan; images: unknown; replay it'):
        train_toy([1.0, 2.0, NAN, 4.0], tmp_path)
    dump = read_dump(tmp_path / 'nonfinite_step_3.dump')
    assert dump.weights['weight'].item() == 1.0 - 1.0 - 2.0
    # Momentum 0.1 and means 1 and 2; the third batch does not count.
    assert dump.weights['norm.running_mean'].item() == pytest.approx(0.1 * 0.9 + 0.2)
    assert dump.weights['norm.num_batches_tracked'].item() == 2


def test_steps_are_skipped_up_to_the_limit(tmp_path: Path) -> None:
    runner = train_toy([1.0, NAN, 2.0, float('inf'), 4.0], tmp_path, skip=2)
    assert runner.model.weight.item() == 1.0 - 7.0
    assert runner.model.norm.running_mean.item() == pytest.approx((0.1 * 0.9 + 0.2) * 0.9 + 0.4)
    assert runner.message_hub.get_info('skipped_nonfinite') == 2
    assert not list(tmp_path.glob('*.dump'))
    folder = tmp_path / 'more'
    folder.mkdir()
    with pytest.raises(UserError, match=r'at step 4: loss nan.*; 1 such steps were skipped before'):
        train_toy([1.0, NAN, 2.0, NAN], folder, skip=1)


def test_resumed_run_continues_to_count_skipped_steps(tmp_path: Path) -> None:
    train_toy([1.0, NAN], tmp_path, skip=1)
    with pytest.raises(UserError, match='at step 3'):
        train_toy([1.0, 1.0, NAN, 1.0], tmp_path, skip=1, resume=str(tmp_path / 'iter_2.pth'))


def test_non_finite_gradients_of_a_finite_loss_are_not_handled(tmp_path: Path) -> None:
    """At zero the square root is finite and its derivative is not. A loss scaler would skip this step."""
    runner = train_toy([1.0], tmp_path, model=Toy(0.0, root=True))
    assert runner.model.weight.item() == -float('inf')


def test_accumulated_gradients_are_dropped_with_a_skipped_batch(tmp_path: Path) -> None:
    runner = train_toy([1.0, NAN, 4.0, 8.0], tmp_path, skip=1, wrapper={'accumulative_counts': 2})
    assert runner.model.weight.item() == 1.0 - (4.0 + 8.0) / 2


def test_optimizer_wrapper_is_restored_after_training(tmp_path: Path) -> None:
    runner = train_toy([1.0], tmp_path)
    assert 'backward' not in vars(runner.optim_wrapper)
    assert 'update_params' not in vars(runner.optim_wrapper)
    assert runner.optim_wrapper.update_params.__func__ is OptimWrapper.update_params
    assert AmpOptimWrapper.update_params is OptimWrapper.update_params, (
        'otherwise the loss scaler would be bypassed'
    )


@pytest.mark.parametrize('value', [-1, 1.5, 'many', True, None])
def test_number_of_steps_to_skip_is_validated(value: Any) -> None:
    with pytest.raises(
        UserError, match=f'skip_nonfinite={value!r}: must be a number of steps, an integer >= 0'
    ):
        NonFiniteLossHook(value)


def test_failure_to_write_the_dump_is_part_of_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(torch, 'save', full)
    with pytest.raises(UserError, match=r'at step 1: loss nan.*could not be written to .*No space left'):
        train_toy([NAN], tmp_path)
    assert not list(tmp_path.glob('*.dump*'))


def test_batch_survives_the_conversion_to_plain_data() -> None:
    from mmdet.structures import DetDataSample
    from mmdet.structures.bbox import HorizontalBoxes
    from mmdet.structures.mask import BitmapMasks, PolygonMasks
    from mmpretrain.structures import DataSample
    from mmseg.structures import SegDataSample

    boxes = HorizontalBoxes(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    masks = BitmapMasks(np.ones((1, 4, 6), np.uint8), 4, 6)
    detected = DetDataSample(metainfo={'img_path': 'a.png', 'scale_factor': (1.0, np.float32(2.0))})
    detected.gt_instances = InstanceData(bboxes=boxes, masks=masks, labels=torch.tensor([3]))
    outlined = DetDataSample(metainfo={'homography_matrix': np.eye(3, dtype=np.float32)})
    outlined.gt_instances = InstanceData(masks=PolygonMasks([[np.arange(6.0)]], 4, 6))
    segmented = SegDataSample(gt_sem_seg=PixelData(data=torch.ones(1, 4, 6, dtype=torch.uint8)))
    classified = DataSample(metainfo={'img_path': 'b.png'}).set_gt_label(5).set_gt_score(torch.ones(6))
    batch = {'inputs': [torch.ones(3, 4, 6)], 'data_samples': [detected, outlined, segmented, classified]}

    plain = to_plain_data(batch)
    back = from_plain_data(plain)
    first, second, third, fourth = back['data_samples']
    assert isinstance(first, DetDataSample)
    assert first.img_path == 'a.png'
    assert first.scale_factor == (1.0, 2.0)
    assert isinstance(first.gt_instances.bboxes, HorizontalBoxes)
    assert torch.equal(first.gt_instances.bboxes.tensor, boxes.tensor)
    assert np.array_equal(first.gt_instances.masks.masks, masks.masks)
    assert first.gt_instances.labels.tolist() == [3]
    assert len(first.gt_instances) == 1
    assert np.array_equal(second.gt_instances.masks.masks[0][0], np.arange(6.0))
    assert second.homography_matrix.dtype == np.float32
    assert torch.equal(third.gt_sem_seg.data, segmented.gt_sem_seg.data)
    assert fourth.gt_label.tolist() == [5]
    assert fourth.gt_score.tolist() == [1.0] * 6
    assert torch.equal(back['inputs'][0], batch['inputs'][0])


def test_dump_cannot_name_arbitrary_classes() -> None:
    class Unknown:
        pass

    plain = to_plain_data({'data_samples': [Unknown()]})
    with pytest.raises(UserError, match='the batch holds Unknown, which a dump cannot restore'):
        from_plain_data(plain)
    with pytest.raises(UserError, match='the batch holds Popen'):
        from_plain_data({'__kind__': 'Popen', 'args': ['true']})
