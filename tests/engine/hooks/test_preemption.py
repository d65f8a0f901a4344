"""Preemption and restarts, with a small model in MMEngine's runner, in this process or two forked ones."""

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

from inline.checkpoints import read_file
from inline.engine.hooks.preemption import PreemptionHook, reduce_signal
from inline.engine.resume import PREEMPTED_NAME, STARTED_NAME, StartedRun, choose_start, is_restart
from inline.engine.signals import EXIT_PREEMPTED, RESTARTED_ENV, STOP_SIGNALS, stop_request
from inline.utils.errors import UserError

LAUNCHER_VARIABLES = (
    'RANK',
    'TORCHELASTIC_RUN_ID',
    'TORCHELASTIC_RESTART_COUNT',
    'SLURM_RESTART_COUNT',
    RESTARTED_ENV,
)


@pytest.fixture(autouse=True)
def clean_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    stop_request.signum = 0
    handlers = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    yield
    for signum, handler in handlers.items():
        signal.signal(signum, handler)
    stop_request.signum = 0


class Numbers(Dataset):
    """Ten pairs of numbers with their sums."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        pair = torch.tensor([index / 10, 1 - index / 5])
        return pair, pair.sum(0, keepdim=True)


class LinearModel(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, pairs: torch.Tensor, sums: torch.Tensor, mode: str = 'tensor') -> object:
        out = self.layer(pairs)
        return {'loss': (out - sums).square().mean()} if mode == 'loss' else list(out)


class CountMetric(BaseMetric):
    """Number of validated predictions."""

    def process(self, data_batch: object, data_samples: list) -> None:  # noqa: ARG002
        self.results += data_samples

    def compute_metrics(self, results: list) -> dict[str, float]:
        return {'images': len(results)}


class SignalAt(Hook):
    """Simulates a signal during a training step, or during a batch of the nth validation."""

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


def make_runner(folder: Path, hook: Hook, by_epoch: bool, start: Config, checkpoint: str | None) -> Runner:
    """Build a run of ten steps, or two epochs of five, with a scheduler, an EMA and two validations."""
    torch.manual_seed(0)
    sampler = {'type': 'DefaultSampler' if by_epoch else 'InfiniteSampler', 'shuffle': True}
    collate = {'type': 'default_collate'}
    batch_size = start.get('batch_size', 2)
    loader = {'dataset': Numbers(), 'batch_size': batch_size, 'num_workers': 0, 'collate_fn': collate}
    loop = {'type': 'inline.ResumableEpochTrainLoop', 'max_epochs': 2}
    if not by_epoch:
        loop = {'type': 'inline.ResumableIterTrainLoop', 'max_iters': 10}
    return Runner(
        model=LinearModel(),
        work_dir=str(folder),
        experiment_name=os.urandom(8).hex(),
        train_dataloader={**loader, 'sampler': sampler},
        val_dataloader={**loader, 'sampler': {'type': 'DefaultSampler', 'shuffle': False, 'round_up': False}},
        train_cfg={**loop, 'val_interval': 1 if by_epoch else 5},
        val_cfg={},
        val_evaluator={'type': CountMetric},
        optim_wrapper={'optimizer': {'type': 'AdamW', 'lr': 0.1}},
        param_scheduler={'type': 'CosineAnnealingLR', 'by_epoch': False, 'T_max': 10},
        default_hooks={
            'checkpoint': {'type': 'inline.AtomicCheckpointHook', 'by_epoch': by_epoch, 'interval': 100}
        },
        custom_hooks=[{'type': 'EMAHook', 'momentum': 0.3}, hook],
        randomness=start.randomness,
        load_from=checkpoint,
        resume=checkpoint is not None,
        log_level='WARNING',
    )


def train(
    folder: Path,
    hook: Hook,
    by_epoch: bool = False,
    resume: str | None = None,
    seed: int | None = 0,
    batch_size: int = 2,
) -> dict[str, torch.Tensor]:
    """Train, possibly resuming, and return all weights and averaged weights."""
    folder.mkdir(exist_ok=True)
    start = Config({'work_dir': str(folder), 'launcher': 'none', 'batch_size': batch_size})
    start.randomness = {'seed': seed}
    checkpoint = choose_start(start, resume)
    runner = make_runner(folder, hook, by_epoch, start, checkpoint)
    runner.register_hook(PreemptionHook(), priority='LOWEST')
    runner.train()
    averages = next(h for h in runner.hooks if type(h).__name__ == 'EMAHook').ema_model.state_dict()
    return {**runner.model.state_dict(), **{f'ema.{key}': value for key, value in averages.items()}}


def saved_state(folder: Path) -> dict:
    assert (folder / 'last_checkpoint').read_text() == str(folder / PREEMPTED_NAME)
    return read_file(folder / PREEMPTED_NAME)


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert torch.equal(value, right[key]), key


STOPS: dict[str, tuple[SignalAt, bool, tuple[int, int], list[float]]] = {
    # signal, by epoch, saved epoch and step, validations of the resumed run
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


@pytest.mark.slow
@pytest.mark.parametrize('stop', STOPS)
def test_stopped_and_resumed_run_equals_an_uninterrupted_one(stop: str, tmp_path: Path) -> None:
    """Compare weights, averages and validations for every moment of the signal."""
    hook, by_epoch, saved, validations_left = STOPS[stop]
    uninterrupted = train(tmp_path / 'uninterrupted', SignalAt(), by_epoch)
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / 'stopped', hook, by_epoch)
    assert ended.value.code == EXIT_PREEMPTED
    meta = saved_state(tmp_path / 'stopped')['meta']
    assert (meta['epoch'], meta['iter']) == saved
    stop_request.signum = 0
    after = SignalAt()
    assert_equal(uninterrupted, train(tmp_path / 'stopped', after, by_epoch, resume='auto'))
    assert after.validations == validations_left


def test_failure_to_save_is_reported_and_last_checkpoint_is_not_written(tmp_path: Path) -> None:
    # A folder has the name of the file.
    (tmp_path / PREEMPTED_NAME).mkdir()
    with pytest.raises(
        UserError, match=r'after step 3, but .*preempted.pth could not be saved: Is a directory'
    ):
        train(tmp_path, SignalAt(step=3))
    assert not (tmp_path / 'last_checkpoint').exists()


RESTARTS: dict[str, dict[str, str]] = {
    'by torchrun': {'TORCHELASTIC_RESTART_COUNT': '1'},
    'by the elastic agent': {'TORCHELASTIC_RESTART_COUNT': '0', RESTARTED_ENV: '1'},
    'by SLURM': {'SLURM_RESTART_COUNT': '2'},
}


@pytest.mark.parametrize('launcher', RESTARTS)
def test_restarted_run_continues_without_a_flag(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted = train(tmp_path / 'uninterrupted', SignalAt())
    with pytest.raises(SystemExit):
        train(tmp_path / 'run', SignalAt(step=7))
    stop_request.signum = 0
    for name, value in RESTARTS[launcher].items():
        monkeypatch.setenv(name, value)
    assert is_restart()
    again = SignalAt(step=7)
    assert_equal(uninterrupted, train(tmp_path / 'run', again))
    # Step 7 was not repeated, otherwise a signal would have come. One validation was left.
    assert again.validations == [10]


def test_restart_ignores_checkpoints_of_an_older_run_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        train(tmp_path, SignalAt(step=3))
    stop_request.signum = 0
    # The next run crashed before its first checkpoint. The clock was set back before it started, so that the
    # older checkpoint seems to be newer.
    StartedRun.write(tmp_path)
    os.utime(tmp_path / STARTED_NAME, (1, 1))
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', '1')
    from_the_start = SignalAt(step=1)
    with pytest.raises(SystemExit):
        train(tmp_path, from_the_start)
    assert saved_state(tmp_path)['meta']['iter'] == 1


@pytest.mark.parametrize('has_id', [True, False])
def test_restart_finds_its_checkpoint_after_the_clock_was_set_back(
    has_id: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of an earlier version has no id. Then only the times are known."""
    with pytest.raises(SystemExit):
        train(tmp_path, SignalAt(step=3))
    stop_request.signum = 0
    written = saved_state(tmp_path)['meta']['run_id']
    if not has_id:
        (tmp_path / STARTED_NAME).write_text('')
    later = (tmp_path / PREEMPTED_NAME).stat().st_mtime + 3600
    os.utime(tmp_path / STARTED_NAME, (later, later))
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', '1')
    hook = CountSteps(step=5)
    with pytest.raises(SystemExit):
        train(tmp_path, hook)
    assert hook.steps == (2 if has_id else 5)
    # All checkpoints of a run have the id that was drawn at its start.
    assert saved_state(tmp_path)['meta'].get('run_id') == (written if has_id else None)


@pytest.mark.parametrize('by_epoch', [False, True])
def test_restarted_run_without_a_seed_keeps_its_data_order(
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
    uninterrupted = train(tmp_path / 'uninterrupted', SignalAt(), by_epoch, seed=seed)
    assert stopped == order
    assert_equal(uninterrupted, again)


def test_restart_ignores_damaged_files_of_an_older_run(
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


CHANGES = {
    'nothing': ({}, ''),
    'the batch size': ({'batch_size': 5}, 'batch size (2 → 5)'),
    'the data': ({'samples': 8}, 'training samples (10 → 8)'),
    'both': ({'batch_size': 4, 'samples': 8}, 'batch size (2 → 4), training samples (10 → 8)'),
}


@pytest.mark.parametrize('change', CHANGES)
def test_changed_data_split_is_reported_in_one_line(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train(tmp_path, SignalAt(step=3))
    stop_request.signum = 0
    options, expected = CHANGES[change]
    samples = options.get('samples', 10)
    monkeypatch.setattr(Numbers, '__len__', lambda _: samples)
    train(tmp_path, SignalAt(), resume='auto', batch_size=options.get('batch_size', 2))
    lines = [line for line in capsys.readouterr().out.splitlines() if 'not exact' in line]
    assert [line.partition('WARNING - ')[2] for line in lines] == (
        [f'resume: the continuation is not exact, {expected} changed'] if expected else []
    )


def test_checkpoint_of_an_earlier_version_resumes_without_the_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train(tmp_path, SignalAt(step=3))
    stop_request.signum = 0
    state = torch.load(tmp_path / PREEMPTED_NAME, weights_only=False)
    del state['meta']['data_split'], state['meta']['run_id']
    torch.save(state, tmp_path / PREEMPTED_NAME)
    hook = CountSteps()
    train(tmp_path, hook, resume='auto', batch_size=5)
    assert hook.steps == 7
    assert 'not exact' not in capsys.readouterr().out


def in_two_processes(folder: Path, work: Callable[[int], int]) -> list[int]:
    """Return the exit codes of two forked processes in a gloo group."""
    children = []
    for rank in range(2):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 99
        try:
            dist.init_process_group('gloo', f'file://{folder / "rendezvous"}', rank=rank, world_size=2)
            code = work(rank)
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            os._exit(code)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_signal_of_one_rank_reaches_all_ranks(tmp_path: Path) -> None:
    def work(rank: int) -> int:
        stop_request.signum = signal.SIGUSR1 if rank == 1 else 0
        return reduce_signal()

    assert in_two_processes(tmp_path, work) == [signal.SIGUSR1] * 2


class CountSteps(SignalAt):
    """Counts the training steps of this rank."""

    steps = 0

    def after_train_iter(self, *_: object, **__: object) -> None:
        self.steps += 1


def test_restart_of_one_rank_restarts_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that came back does not know that the others were restarted: rank 0 is, rank 1 is not."""
    run, ranks = tmp_path / 'run', [tmp_path / 'first', tmp_path / 'second']
    for folder in ranks:
        folder.mkdir()

    def stopped(rank: int) -> int:
        train(run, SignalAt(step=3))
        return rank

    def restarted(rank: int) -> int:
        if rank == 0:
            monkeypatch.setenv(RESTARTED_ENV, '1')
        hook = CountSteps()
        train(run, hook)
        return hook.steps

    assert in_two_processes(ranks[0], stopped) == [EXIT_PREEMPTED, 0]
    assert in_two_processes(ranks[1], restarted) == [7, 7]


def test_start_that_fails_on_rank_0_fails_on_all_ranks(tmp_path: Path) -> None:
    """Rank 0 cannot write to the work directory; rank 1 must not wait for it."""
    (tmp_path / 'file').touch()
    cfg = Config({'work_dir': str(tmp_path / 'file'), 'launcher': 'none'})

    def work(rank: int) -> int:
        with pytest.raises((OSError, UserError), match=r'(File exists|Not a directory)'):
            choose_start(cfg, None)
        return 40 + rank

    assert in_two_processes(tmp_path, work) == [40, 41]


@pytest.mark.parametrize(('torchrun', 'codes'), [(True, [EXIT_PREEMPTED] * 2), (False, [EXIT_PREEMPTED, 0])])
@pytest.mark.parametrize(('signalled', 'batch', 'due'), [(1, 1, True), (0, 2, False)])
def test_two_ranks_leave_a_validation_together(
    signalled: int, batch: int, due: bool, torchrun: bool, codes: list[int],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Validate nine images: rank 0 has five in three batches, rank 1 four in two.

    After a batch that both have, they leave at once; after one that rank 1 lacks, at the end.
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
