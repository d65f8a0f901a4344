"""Stopping and going on, with a small model in MMEngine's runner, in this process or two forked ones."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import Dataset

from inline.engine.preemption import (
    STARTED_NAME,
    PreemptionHook,
    agreed_signal,
    choose_start,
    is_restart,
)
from inline.engine.resume import PREEMPTED_NAME
from inline.engine.safe_loading import load_safely
from inline.engine.signals import PREEMPTED, RESTARTED, STOP_SIGNALS, stop_request
from inline.errors import UserError

LAUNCHERS = ('RANK', 'TORCHELASTIC_RUN_ID', 'TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT', RESTARTED)


@pytest.fixture(autouse=True)
def no_signal_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    stop_request.signum = 0
    handlers = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    yield
    for signum, handler in handlers.items():
        signal.signal(signum, handler)
    stop_request.signum = 0


class Numbers(Dataset):
    """Ten pairs of numbers and their sums."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        pair = torch.tensor([index / 10, 1 - index / 5])
        return pair, pair.sum(0, keepdim=True)


class Line(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, pairs: torch.Tensor, sums: torch.Tensor, mode: str = 'tensor') -> object:
        out = self.layer(pairs)
        return {'loss': (out - sums).square().mean()} if mode == 'loss' else list(out)


class Counted(BaseMetric):
    """How many predictions were validated."""

    def process(self, data_batch: object, data_samples: list) -> None:  # noqa: ARG002
        self.results += data_samples

    def compute_metrics(self, results: list) -> dict[str, float]:
        return {'images': len(results)}


class SignalAt(Hook):
    """A signal that comes in a step, or in a batch of the nth validation."""

    def __init__(self, step: int = 0, validation: int = 0, batch: int = 0) -> None:
        self.step, self.validation, self.batch = step, validation, batch
        self.validations: list[float] = []

    def before_train_iter(self, runner: Runner, **_: object) -> None:
        if runner.iter + 1 == self.step:
            stop_request.signum = signal.SIGUSR1

    def before_val_iter(self, runner: Runner, batch_idx: int, **_: object) -> None:  # noqa: ARG002
        if len(self.validations) + 1 == self.validation and batch_idx == self.batch:
            stop_request.signum = signal.SIGTERM

    def after_val_epoch(self, runner: Runner, metrics: dict) -> None:  # noqa: ARG002
        self.validations.append(metrics['images'])


def make_runner(folder: Path, hook: Hook, by_epoch: bool, start: Config) -> Runner:
    """Ten steps of two pairs each, or two epochs of five: a scheduler, an average, two validations."""
    torch.manual_seed(0)
    sampler = {'type': 'DefaultSampler' if by_epoch else 'InfiniteSampler', 'shuffle': True}
    collate = {'type': 'default_collate'}
    loader = {'dataset': Numbers(), 'batch_size': 2, 'num_workers': 0, 'collate_fn': collate}
    loop = {'type': 'inline.ExactEpochLoop', 'max_epochs': 2}
    if not by_epoch:
        loop = {'type': 'inline.ExactIterLoop', 'max_iters': 10}
    return Runner(
        model=Line(),
        work_dir=str(folder),
        experiment_name=os.urandom(8).hex(),
        train_dataloader={**loader, 'sampler': sampler},
        val_dataloader={**loader, 'sampler': {'type': 'DefaultSampler', 'shuffle': False, 'round_up': False}},
        train_cfg={**loop, 'val_interval': 1 if by_epoch else 5},
        val_cfg={},
        val_evaluator={'type': Counted},
        optim_wrapper={'optimizer': {'type': 'AdamW', 'lr': 0.1}},
        param_scheduler={'type': 'CosineAnnealingLR', 'by_epoch': False, 'T_max': 10},
        default_hooks={
            'checkpoint': {'type': 'inline.WholeCheckpointHook', 'by_epoch': by_epoch, 'interval': 100}
        },
        custom_hooks=[{'type': 'EMAHook', 'momentum': 0.3}, hook],
        randomness=start.randomness,
        load_from=start.load_from,
        resume=start.resume,
        log_level='WARNING',
    )


def train(
    folder: Path, hook: Hook, by_epoch: bool = False, resume: str | None = None, seed: int | None = 0
) -> dict[str, torch.Tensor]:
    """All weights and averages at the end of a training that may be resumed."""
    folder.mkdir(exist_ok=True)
    start = Config({'work_dir': str(folder), 'launcher': 'none', 'load_from': None, 'resume': False})
    start.randomness = {'seed': seed}
    choose_start(start, resume)
    runner = make_runner(folder, hook, by_epoch, start)
    runner.register_hook(PreemptionHook(), priority='LOWEST')
    runner.train()
    averages = next(h for h in runner.hooks if type(h).__name__ == 'EMAHook').ema_model.state_dict()
    return {**runner.model.state_dict(), **{f'ema.{key}': value for key, value in averages.items()}}


def saved_state(folder: Path) -> dict:
    assert (folder / 'last_checkpoint').read_text() == str(folder / PREEMPTED_NAME)
    return load_safely(folder / PREEMPTED_NAME)


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert torch.equal(value, right[key]), key


STOPS: dict[str, tuple[SignalAt, bool, tuple[int, int], list[float]]] = {
    # where the signal comes; by epoch or not; epoch and step saved; validations after it
    'in a step': (SignalAt(step=3), False, (0, 3), [10, 10]),
    'in the step before a validation': (SignalAt(step=5), False, (0, 5), [10, 10]),
    'in the last step': (SignalAt(step=10), False, (0, 10), [10]),
    'in a validation': (SignalAt(validation=1, batch=2), False, (0, 5), [10, 10]),
    'in the last batch of a validation': (SignalAt(validation=1, batch=4), False, (0, 5), [10, 10]),
    'in the last validation': (SignalAt(validation=2, batch=1), False, (0, 10), [10]),
    'in the middle of an epoch': (SignalAt(step=3), True, (0, 3), [10, 10]),
    'in the last step of an epoch': (SignalAt(step=5), True, (1, 5), [10, 10]),
    'in the validation of an epoch': (SignalAt(validation=1, batch=2), True, (1, 5), [10, 10]),
}


@pytest.mark.parametrize('stop', STOPS)
def test_a_stopped_training_ends_as_if_it_had_not_been(stop: str, tmp_path: Path) -> None:
    """Weights, their averages and validations, wherever the signal came."""
    hook, by_epoch, saved, validations_left = STOPS[stop]
    whole = train(tmp_path / 'whole', SignalAt(), by_epoch)
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / 'stopped', hook, by_epoch)
    assert ended.value.code == PREEMPTED
    meta = saved_state(tmp_path / 'stopped')['meta']
    assert (meta['epoch'], meta['iter']) == saved
    stop_request.signum = 0
    after = SignalAt()
    assert_equal(whole, train(tmp_path / 'stopped', after, by_epoch, resume='auto'))
    assert after.validations == validations_left


def test_a_stop_that_could_not_save_says_so_and_names_no_checkpoint(tmp_path: Path) -> None:
    # A folder stands where the file should go.
    (tmp_path / PREEMPTED_NAME).mkdir()
    with pytest.raises(
        UserError, match=r'after step 3, but .*preempted.pth could not be saved: Is a directory'
    ):
        train(tmp_path, SignalAt(step=3))
    assert not (tmp_path / 'last_checkpoint').exists()


RESTARTS: dict[str, dict[str, str]] = {
    'by torchrun': {'TORCHELASTIC_RESTART_COUNT': '1'},
    'by our agent': {'TORCHELASTIC_RESTART_COUNT': '0', RESTARTED: '1'},
    'by SLURM': {'SLURM_RESTART_COUNT': '2'},
}


@pytest.mark.parametrize('who', RESTARTS)
def test_a_training_that_is_started_again_goes_on_by_itself(
    who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tmp_path / 'whole', SignalAt())
    with pytest.raises(SystemExit):
        train(tmp_path / 'run', SignalAt(step=7))
    stop_request.signum = 0
    for name, value in RESTARTS[who].items():
        monkeypatch.setenv(name, value)
    assert is_restart()
    again = SignalAt(step=7)
    assert_equal(whole, train(tmp_path / 'run', again))
    # Step 7 was not repeated: no signal came, and one validation was left.
    assert again.validations == [10]


def test_a_restart_leaves_an_older_run_in_the_same_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        train(tmp_path, SignalAt(step=3))
    stop_request.signum = 0
    # The next run began later and died before its first checkpoint.
    later = (tmp_path / PREEMPTED_NAME).stat().st_mtime + 10
    os.utime(tmp_path / STARTED_NAME, (later, later))
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', '1')
    from_the_start = SignalAt(step=1)
    with pytest.raises(SystemExit):
        train(tmp_path, from_the_start)
    assert saved_state(tmp_path)['meta']['iter'] == 1


@pytest.mark.parametrize('by_epoch', [False, True])
def test_a_run_without_a_seed_keeps_the_order_of_its_data_when_it_is_started_again(
    by_epoch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[float] = []
    monkeypatch.setattr(
        SignalAt, 'after_train_iter', lambda *_, data_batch, **__: order.extend(data_batch[0][:, 0].tolist())
    )
    with pytest.raises(SystemExit):
        train(tmp_path / 'run', SignalAt(step=3), by_epoch, seed=None)
    seed = saved_state(tmp_path / 'run')['meta']['seed']
    stop_request.signum = 0
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', '1')
    again = train(tmp_path / 'run', SignalAt(), by_epoch, seed=None)
    monkeypatch.delenv('TORCHELASTIC_RESTART_COUNT')
    stopped, order[:] = list(order), []
    whole = train(tmp_path / 'whole', SignalAt(), by_epoch, seed=seed)
    assert stopped == order
    assert_equal(whole, again)


def test_a_restart_beside_damaged_files_of_an_older_run_starts_as_its_flags_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ('iter_4.pth', 'last_checkpoint'):
        (tmp_path / name).write_text('iter_4.pth')
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / STARTED_NAME).touch()
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', '1')
    with pytest.raises(SystemExit):
        train(tmp_path, SignalAt(step=1))
    assert saved_state(tmp_path)['meta']['iter'] == 1


def in_two_processes(folder: Path, work: Callable[[int], int]) -> list[int]:
    """Exit codes of two forked processes that are joined by gloo."""
    children = []
    for rank in range(2):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 99
        try:
            dist.init_process_group('gloo', f'file://{folder / "meeting"}', rank=rank, world_size=2)
            code = work(rank)
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            os._exit(code)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_processes_agree_when_one_of_them_got_the_signal(tmp_path: Path) -> None:
    def work(rank: int) -> int:
        stop_request.signum = signal.SIGUSR1 if rank == 1 else 0
        return agreed_signal()

    assert in_two_processes(tmp_path, work) == [signal.SIGUSR1] * 2


@pytest.mark.parametrize(('torchrun', 'codes'), [(True, [PREEMPTED] * 2), (False, [PREEMPTED, 0])])
@pytest.mark.parametrize(('signalled', 'batch', 'due'), [(1, 1, True), (0, 2, False)])
def test_two_processes_leave_a_validation_together(
    signalled: int, batch: int, due: bool, torchrun: bool, codes: list[int],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Nine images: five for the first rank, in three batches, four for the second, in two.

    In a batch that both have they leave the validation; in one that the second lacks, after it.
    """
    if torchrun:
        monkeypatch.setenv('TORCHELASTIC_RUN_ID', 'x')
    monkeypatch.setattr(Numbers, '__len__', lambda _: 9)

    def work(rank: int) -> int:
        train(tmp_path, SignalAt(validation=1, batch=batch) if rank == signalled else SignalAt())
        return 0

    assert in_two_processes(tmp_path, work) == codes
    state = saved_state(tmp_path)
    assert state['meta']['iter'] == 5
    validated = state['message_hub']['runtime_info'].get('iter_validated')
    assert validated == (None if due else 5)
