"""Checkpoint hook: which files exist at every moment, full disks, resumed and copied runs."""

import errno
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.fileio import LocalBackend
from mmengine.logging import MessageHub
from torch import nn

from inline.engine.hooks import checkpoint as checkpoints
from inline.engine.hooks.checkpoint import AtomicCheckpointHook
from inline.openmmlab.patches import write_files_atomically
from inline.utils import atomic
from inline.utils.errors import UserError


class Log:
    """Records what is logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str) -> None:
        self.lines.append(line)

    warning = info


class Loop:
    """The attributes of an iteration-based training loop that the hook reads."""

    val_begin, val_interval = 1, 10
    iter = epoch = 0
    max_iters, max_epochs = 8, 1

    def _decide_current_val_interval(self) -> None:
        """Do nothing: the interval is constant."""


class FakeRunner:
    """The attributes of a runner that the hook uses. A checkpoint holds a step and the message hub."""

    def __init__(self, folder: Path, name: str) -> None:
        self.work_dir = str(folder)
        self.message_hub = MessageHub.get_instance(name)
        self.logger = Log()
        self.model = nn.Linear(1, 1)
        self.train_loop = Loop()
        self.val_loop = None
        self._resume = False
        self.max_iters = self.train_loop.max_iters

    @property
    def iter(self) -> int:
        return self.train_loop.iter

    @property
    def epoch(self) -> int:
        return 0

    def save_checkpoint(self, out_dir: str, filename: str, *_: Any, **__: Any) -> None:
        content = {'step': self.iter, 'message_hub': self.message_hub.state_dict()}
        path = Path(out_dir, filename)
        torch.save(content, path.with_suffix('.bytes'))
        data = path.with_suffix('.bytes').read_bytes()
        path.with_suffix('.bytes').unlink()
        LocalBackend().put(data, path)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeRunner:
    for name in ('put', 'put_text'):
        monkeypatch.setattr(LocalBackend, name, getattr(LocalBackend, name))
    write_files_atomically()
    return FakeRunner(tmp_path, request.node.name)


def make_hook(runner: FakeRunner, **options: Any) -> AtomicCheckpointHook:
    hook = AtomicCheckpointHook(interval=2, by_epoch=False, **options)
    hook.before_train(runner)
    return hook


def take_steps(runner: FakeRunner, hook: AtomicCheckpointHook, steps: int) -> None:
    for _ in range(steps):
        hook.after_train_iter(runner, runner.iter)
        runner.train_loop.iter += 1


def files(runner: FakeRunner) -> list[str]:
    return sorted(os.listdir(runner.work_dir))


def last(runner: FakeRunner) -> str:
    return Path(Path(runner.work_dir, 'last_checkpoint').read_text()).name


def fail_to_write(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Simulate a disk that is full for files whose path contains `name`."""
    write = atomic.atomic_write

    def write_or_fail(path: str | Path, content: bytes) -> None:
        if name in str(path):
            raise OSError(errno.ENOSPC, 'No space left on device')
        write(path, content)

    monkeypatch.setattr(atomic, 'atomic_write', write_or_fail)
    monkeypatch.setattr(checkpoints, 'atomic_write', write_or_fail)


@pytest.mark.parametrize('keep', [1, 2, -1])
def test_outdated_checkpoints_are_removed_after_last_checkpoint_is_written(
    keep: int, runner: FakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    write = atomic.atomic_write

    def record_and_write(path: str | Path, content: bytes) -> None:
        seen.append((Path(path).name, files(runner)))
        write(path, content)

    monkeypatch.setattr(atomic, 'atomic_write', record_and_write)
    monkeypatch.setattr(checkpoints, 'atomic_write', record_and_write)
    hook = make_hook(runner, max_keep_ckpts=keep)
    take_steps(runner, hook, 8)
    kept = [f'iter_{step}.pth' for step in (2, 4, 6, 8)][-keep if keep > 0 else 0 :]
    assert files(runner) == [*kept, 'last_checkpoint']
    assert last(runner) == 'iter_8.pth'
    order = [name for name, _ in seen]
    assert order == [name for step in (2, 4, 6, 8) for name in (f'iter_{step}.pth', 'last_checkpoint')]
    for number, (name, there) in enumerate(seen):
        # All files from before the save still exist when last_checkpoint is written.
        if name == 'last_checkpoint' and number > 1:
            assert set(seen[number - 1][1]) < set(there)
    assert runner.message_hub.runtime_info.get('keep_ckpt_ids', [8])[-1] == 8


def test_resumed_run_removes_what_a_killed_run_could_not(runner: FakeRunner) -> None:
    hook = make_hook(runner, max_keep_ckpts=1)
    take_steps(runner, hook, 2)
    old = Path(runner.work_dir, 'iter_2.pth').read_bytes()
    take_steps(runner, hook, 2)
    Path(runner.work_dir, 'iter_2.pth').write_bytes(old)
    saved = torch.load(Path(runner.work_dir, 'iter_4.pth'), weights_only=False)
    resumed = FakeRunner(Path(runner.work_dir), 'resumed')
    resumed.message_hub.load_state_dict(saved['message_hub'])
    make_hook(resumed, max_keep_ckpts=1)
    assert files(resumed) == ['iter_4.pth', 'last_checkpoint']


def test_previous_best_is_removed_after_the_new_one_is_written(runner: FakeRunner) -> None:
    hook = make_hook(runner, save_best='acc', rule='greater', max_keep_ckpts=1)
    take_steps(runner, hook, 2)
    hook.after_val_epoch(runner, {'acc': 0.5})
    assert files(runner) == ['best_acc_iter_2.pth', 'iter_2.pth', 'last_checkpoint']
    take_steps(runner, hook, 2)
    hook.after_val_epoch(runner, {'acc': 0.4})
    assert files(runner) == ['best_acc_iter_2.pth', 'iter_4.pth', 'last_checkpoint']
    assert hook.best_ckpt_path == str(Path(runner.work_dir, 'best_acc_iter_2.pth'))
    take_steps(runner, hook, 2)
    hook.after_val_epoch(runner, {'acc': 0.6})
    assert files(runner) == ['best_acc_iter_6.pth', 'iter_6.pth', 'last_checkpoint']
    # If the process is killed before the removal, the checkpoint lists what to remove.
    saved = torch.load(Path(runner.work_dir, 'iter_6.pth'), weights_only=False)['message_hub']['runtime_info']
    assert [Path(path).name for path in saved['outdated_ckpts']] == ['best_acc_iter_2.pth']
    assert saved['best_score'] == 0.6


def test_each_metric_has_its_own_best_checkpoint(runner: FakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = make_hook(runner, save_best=['acc', 'loss'], rule=['greater', 'less'])
    take_steps(runner, hook, 2)
    hook.after_val_epoch(runner, {'acc': 0.5, 'loss': 2.0})
    take_steps(runner, hook, 2)
    hook.after_val_epoch(runner, {'acc': 0.6, 'loss': 3.0})
    best = ['best_acc_iter_4.pth', 'best_loss_iter_2.pth']
    assert [name for name in files(runner) if name.startswith('best')] == best
    take_steps(runner, hook, 2)
    fail_to_write(monkeypatch, 'best_loss')
    hook.after_val_epoch(runner, {'acc': 0.7, 'loss': 1.0})
    assert [name for name in files(runner) if name.startswith('best')] == best
    assert runner.message_hub.get_info('best_score_acc') == 0.6


def test_previous_best_is_kept_when_the_disk_is_full(
    runner: FakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(runner, save_best='acc', rule='greater')
    take_steps(runner, hook, 2)
    hook.after_val_epoch(runner, {'acc': 0.5})
    take_steps(runner, hook, 2)
    with monkeypatch.context() as full:
        fail_to_write(full, 'best_')
        hook.after_val_epoch(runner, {'acc': 0.6})
    assert 'best_acc_iter_2.pth' in files(runner)
    assert 'best_acc_iter_4.pth' not in files(runner)
    assert 'best checkpoint not saved' in runner.logger.lines[-1]
    assert runner.message_hub.get_info('best_score') == 0.5
    hook.after_val_epoch(runner, {'acc': 0.55})
    assert 'best_acc_iter_2.pth' not in files(runner)
    assert 'best_acc_iter_4.pth' in files(runner)


@pytest.mark.parametrize('name', ['iter_4', 'last_checkpoint'])
def test_previous_checkpoint_is_kept_when_the_disk_is_full_and_the_next_save_succeeds(
    name: str, runner: FakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(runner, max_keep_ckpts=1)
    take_steps(runner, hook, 2)
    with monkeypatch.context() as full:
        fail_to_write(full, name)
        take_steps(runner, hook, 2)
        assert files(runner) == ['iter_2.pth', 'last_checkpoint']
        assert last(runner) == 'iter_2.pth'
        warnings = [line for line in runner.logger.lines if 'not saved' in line]
        assert len(warnings) == 1
        assert 'No space left on device' in warnings[0]
        assert runner.message_hub.get_info('keep_ckpt_ids') == [2]
    take_steps(runner, hook, 2)
    assert files(runner) == ['iter_6.pth', 'last_checkpoint']
    assert last(runner) == 'iter_6.pth'


def test_full_disk_after_the_last_step_is_an_error(
    runner: FakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(runner)
    take_steps(runner, hook, 7)
    fail_to_write(monkeypatch, 'iter_8')
    with pytest.raises(UserError, match=r'last checkpoint could not be saved .* No space left on device'):
        take_steps(runner, hook, 1)
    assert last(runner) == 'iter_6.pth'


def test_file_size_limit_is_handled_like_a_full_disk(
    runner: FakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(runner, max_keep_ckpts=1)
    take_steps(runner, hook, 3)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    put = LocalBackend.put

    def put_within_quota(self: LocalBackend, obj: bytes, filepath: str | Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(obj) // 2, limits[1]))
        try:
            put(self, obj, filepath)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(LocalBackend, 'put', put_within_quota)
    take_steps(runner, hook, 1)
    assert files(runner) == ['iter_2.pth', 'last_checkpoint']
    assert 'File too large' in runner.logger.lines[-1]


def test_missed_validation_is_repeated(runner: FakeRunner) -> None:
    validated = []

    class Validation:
        def run(self) -> None:
            validated.append(runner.iter)

    runner.val_loop, runner._resume = Validation(), True
    for step in (0, 2, 8, 10, 13, 20):
        runner.train_loop.iter = step
        make_hook(runner)
    # 8 is the last step of this run.
    assert validated == [8, 10, 20]
    runner.message_hub.update_info('iter_validated', 20)
    make_hook(runner)
    runner._resume = False
    runner.train_loop.iter = 10
    make_hook(runner)
    assert validated == [8, 10, 20]


def resume_with(folder: Path, name: str, infos: dict[str, Any], **options: Any) -> AtomicCheckpointHook:
    """Return a hook that continues from a checkpoint with these values in its message hub."""
    resumed = FakeRunner(folder, name)
    for key, value in infos.items():
        resumed.message_hub.update_info(key, value)
    hook = make_hook(resumed, **options)
    resumed.train_loop.iter = 4
    hook.after_val_epoch(resumed, {'acc': 0.9, 'loss': 0.1})
    return hook


@pytest.mark.parametrize('best', ['acc', ['acc', 'loss']])
def test_malicious_checkpoint_removes_nothing_outside_its_folder(best: Any, tmp_path: Path) -> None:
    work, victim = tmp_path / 'work', tmp_path / 'victim'
    for folder in (work, victim, work / 'best_acc_iter_3.pth'):
        folder.mkdir()
    bait = [victim / 'best_acc_iter_1.pth', victim / 'mine.txt', work / 'notes.pth', tmp_path / 'iter_1.pth']
    for path in bait:
        path.write_text('keep me')
    listed = [
        *map(str, bait),
        str(victim),
        str(work),
        '../victim',
        '',
        None,
        7,
        str(work / 'best_acc_iter_3.pth'),
    ]
    for number, path in enumerate(listed):
        infos = {
            'outdated_ckpts': listed if number == 0 else path,
            'best_ckpt': path,
            'best_ckpt_acc': path,
            'best_ckpt_loss': path,
            'keep_ckpt_ids': [str(victim), '../victim/mine.txt', path, 1, 2],
        }
        hook = resume_with(
            work, f'{best}{number}', infos,
            save_best=best, rule='greater', max_keep_ckpts=1,
        )  # fmt: skip
        assert list(hook.keep_ckpt_ids) == [2]
    assert all(path.read_text() == 'keep me' for path in bait)
    assert (work / 'best_acc_iter_3.pth').is_dir()


def test_copied_run_does_not_touch_the_original(runner: FakeRunner, tmp_path: Path) -> None:
    original, copied = tmp_path / 'original', tmp_path / 'copied'
    original.mkdir()
    runner.work_dir = str(original)
    hook = make_hook(runner, save_best='acc', rule='greater', max_keep_ckpts=1)
    take_steps(runner, hook, 2)
    hook.after_val_epoch(runner, {'acc': 0.5})
    shutil.copytree(original, copied)
    before = files(runner)
    saved = torch.load(copied / 'iter_2.pth', weights_only=False)['message_hub']['runtime_info']
    assert saved['best_ckpt'] == str(original / 'best_acc_iter_2.pth')
    hook = resume_with(copied, 'copied', saved, save_best='acc', rule='greater', max_keep_ckpts=1)
    assert files(runner) == before
    # It removes its own copy of the previous best.
    assert sorted(os.listdir(copied)) == ['best_acc_iter_4.pth', 'iter_2.pth', 'last_checkpoint']
    assert hook.best_ckpt_path == str(copied / 'best_acc_iter_4.pth')


def test_checkpoint_of_a_different_model_is_refused(runner: FakeRunner) -> None:
    hook, runner._resume = make_hook(runner), True
    with pytest.raises(UserError, match=r'of a different model: 1 of 2 tensors match'):
        hook.after_load_checkpoint(runner, {'state_dict': {'weight': torch.zeros(1, 1)}})


def test_a_metric_that_the_validation_does_not_give_is_reported_with_those_it_gives() -> None:
    hook = AtomicCheckpointHook(save_best='accuracy', rule='greater')
    with pytest.raises(UserError, match=r"^save_best 'accuracy' .* gives accuracy/top1, accuracy/top5 \(did"):
        hook._save_best_checkpoint(None, {'accuracy/top1': 1.0, 'accuracy/top5': 2.0})
