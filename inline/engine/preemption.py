"""Stopping a training so that nothing is lost, and going on after a restart.

A hook in every training of tools/train.py saves and leaves when a signal asked for it; all processes agree
on the step. A training that a launcher started again goes on from its own newest checkpoint, without
``--resume``.
"""

import os
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.dist import all_reduce, barrier, broadcast_object_list, is_main_process
from mmengine.hooks import CheckpointHook, EMAHook, Hook
from mmengine.runner import EpochBasedTrainLoop, Runner

from inline.engine.checkpoints import average_buffers
from inline.engine.resume import PREEMPTED_NAME, choose_checkpoint, meet
from inline.engine.signals import PREEMPTED, RESTARTED, signal_name, stop_request
from inline.errors import UserError
from inline.whole_files import write_whole

# An empty file in the work directory: checkpoints that are newer belong to the run that made it.
STARTED_NAME = 'started'


class PreemptionHook(Hook):
    """Saves a checkpoint and leaves after the step, or the batch of validation, in which a signal came.

    It must run after all other hooks: schedulers have stepped then, and averages are up to date. A validation
    that was broken off, or had not begun, the checkpoint hook makes up for when the training is resumed.
    """

    def __init__(self) -> None:
        self._shared_batches = 0

    def before_train(self, runner: Runner) -> None:  # noqa: ARG002 (MMEngine's)
        stop_request.at_once = False

    # MMEngine also hands over the batch and the outputs, here and below.
    def after_train_iter(self, runner: Runner, batch_idx: int, **_: object) -> None:
        # After the last step of an epoch or before a validation the loops have more to do: the next chance
        # to stop comes with the validation, or one step later.
        if not self._more_follows(runner, batch_idx) and (signum := agreed_signal()):
            self._stop(runner, signum, runner.epoch, runner.iter + 1)

    def before_val(self, runner: Runner) -> None:
        if signum := agreed_signal():
            self._stop(runner, signum, runner.epoch, runner.iter)
        # Uneven shards: some ranks have a batch more, in which nobody would answer them.
        self._shared_batches = _lowest(len(runner.val_dataloader))

    def after_val_iter(self, runner: Runner, batch_idx: int, **_: object) -> None:
        if batch_idx < self._shared_batches and (signum := agreed_signal()):
            for hook in runner.hooks:
                if isinstance(hook, EMAHook):
                    # Averaged weights stand in the model while it validates: put its own back.
                    hook.after_val_epoch(runner)
            self._stop(runner, signum, runner.epoch, runner.iter)

    def after_val(self, runner: Runner) -> None:
        if signum := agreed_signal():
            self._stop(runner, signum, runner.epoch, runner.iter)

    def _more_follows(self, runner: Runner, batch_idx: int) -> bool:
        loop = runner.train_loop
        if isinstance(loop, EpochBasedTrainLoop):
            return self.end_of_epoch(runner.train_dataloader, batch_idx)
        step = runner.iter + 1
        validates = runner.val_loop is not None and step >= loop.val_begin and step % loop.val_interval == 0
        return validates or step == runner.max_iters

    def _stop(self, runner: Runner, signum: int, epoch: int, step: int) -> None:
        path, error = _save(runner, {'epoch': epoch, 'iter': step})
        # A launcher may end all processes when the first one leaves: not before the file is whole.
        barrier()
        stopped = f'stopped by {signal_name(signum)} after step {step}'
        if error is not None:
            raise UserError(
                f'{stopped}, but {path} could not be saved: {error}; --resume goes on from the one before'
            )
        runner.logger.info(f'{stopped}: go on with --resume from {path}')
        stop_request.ignore()
        raise SystemExit(exit_code())


def exit_code() -> int:
    """What this process tells its launcher: 75, except for the higher ranks of srun and mpirun.

    Those launchers end all others when one process fails, and report the highest code. torchrun's agents
    decide for the workers of their own machine, so each of these says it.
    """
    return PREEMPTED if is_main_process() or 'TORCHELASTIC_RUN_ID' in os.environ else 0


def agreed_signal() -> int:
    """A signal that any process received, the same for all of them; 0 if none did."""
    signum = torch.tensor(stop_request.signum)
    all_reduce(signum, 'max')
    return int(signum)


def _lowest(count: int) -> int:
    """The lowest of all processes' numbers."""
    lowest = torch.tensor(count)
    all_reduce(lowest, 'min')
    return int(lowest)


def _save(runner: Runner, meta: dict) -> tuple[str, str | None]:
    """Write a checkpoint where the run's others are, with all that resuming needs.

    Returns its path and, the same for all processes, why it could not be written.
    """
    hook = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
    folder = runner.work_dir if hook is None else hook.out_dir
    backend_args = None if hook is None else hook.backend_args
    path = os.path.join(folder, PREEMPTED_NAME)
    error: list[str | None] = [None]
    runner.message_hub.update_info('last_ckpt', path)
    average_buffers(runner.model)
    try:
        runner.save_checkpoint(folder, PREEMPTED_NAME, meta=meta, backend_args=backend_args)
        if is_main_process():
            write_whole(Path(runner.work_dir, 'last_checkpoint'), path.encode())
    except OSError as failure:
        error = [failure.strerror or str(failure)]
    broadcast_object_list(error)
    return path, error[0]


def choose_start(cfg: Config, resume: str | None) -> None:
    """Set what a training begins with, before the seed is drawn and the order of the data with it.

    If a launcher started it again, that is the newest checkpoint that this run has written. What an earlier
    run left in the same folder does not count: without a checkpoint of its own the run starts as its
    flags say, from `resume` if that is not None.
    """
    meet(cfg)
    restarted = torch.tensor(int(is_restart()))
    # A machine that came back does not know that the others have been here before.
    all_reduce(restarted, 'max')
    since = None
    if is_main_process():
        started = Path(cfg.work_dir) / STARTED_NAME
        if not restarted:
            started.touch()
        elif started.is_file():
            # The file system's own time, as that of checkpoints: clocks of several machines don't matter.
            since = started.stat().st_mtime
    if restarted or resume is not None:
        choose_checkpoint(cfg, resume, since)


def is_restart() -> bool:
    """Whether torchrun, our agent or SLURM has started this training before."""
    counts = (os.environ.get(name, '0') for name in ('TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT'))
    return RESTARTED in os.environ or any(int(count) > 0 for count in counts)
