"""Preemption: save and exit after a stop signal. All ranks stop after the same step.

A run that its launcher restarts continues from its newest checkpoint: see :mod:`inline.engine.resume`.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_reduce, barrier, is_main_process
from mmengine.hooks import CheckpointHook, EMAHook, Hook
from mmengine.runner import EpochBasedTrainLoop, Runner

from inline.engine.distributed.setup import raise_on_all_ranks
from inline.engine.hooks.checkpoint import average_buffers
from inline.engine.hooks.summary import resume_command
from inline.engine.resume import PREEMPTED_NAME
from inline.engine.signals import EXIT_PREEMPTED, mark_preempted, signal_name, stop_request
from inline.registry import HOOKS
from inline.utils.atomic import atomic_write
from inline.utils.errors import UserError


@HOOKS.register_module()
class PreemptionHook(Hook):
    """Save a checkpoint and exit after the training step, or validation batch, in which a stop signal came.

    The checkpoint hook repeats a validation that was interrupted, or had not begun, when the run is resumed.
    """

    # After all other hooks: schedulers have stepped and the EMA is up to date.
    priority = 'LOWEST'

    def __init__(self) -> None:
        self._common_batches = 0

    def before_train(self, runner: Runner) -> None:  # noqa: ARG002 (MMEngine's signature)
        stop_request.exit_immediately = False

    def after_train_iter(self, runner: Runner, batch_idx: int, **_: Any) -> None:
        # After the last step of an epoch, or before a validation, the loop has not finished its work for
        # this step. The next opportunity comes with the validation or one step later.
        if not self._is_followed_by_more_work(runner, batch_idx) and (signum := reduce_signal()):
            self._stop(runner, signum, runner.iter + 1)

    def before_val(self, runner: Runner) -> None:
        if signum := reduce_signal():
            self._stop(runner, signum, runner.iter)
        # With uneven shards some ranks have an additional batch. A collective there would block.
        fewest = torch.tensor(len(runner.val_dataloader))
        all_reduce(fewest, 'min')
        self._common_batches = int(fewest)

    def after_val_iter(self, runner: Runner, batch_idx: int, **_: Any) -> None:
        if batch_idx < self._common_batches and (signum := reduce_signal()):
            for hook in runner.hooks:
                if isinstance(hook, EMAHook):
                    # During validation the model holds the EMA weights: swap them back.
                    hook.after_val_epoch(runner)
            self._stop(runner, signum, runner.iter)

    def after_val(self, runner: Runner) -> None:
        if signum := reduce_signal():
            self._stop(runner, signum, runner.iter)

    def _is_followed_by_more_work(self, runner: Runner, batch_idx: int) -> bool:
        loop = runner.train_loop
        if isinstance(loop, EpochBasedTrainLoop):
            return self.end_of_epoch(runner.train_dataloader, batch_idx)
        step = runner.iter + 1
        validates = runner.val_loop is not None and step >= loop.val_begin and step % loop.val_interval == 0
        return validates or step == runner.max_iters

    def _stop(self, runner: Runner, signum: int, step: int) -> None:
        stopped = f'stopped by {signal_name(signum)} after step {step}'
        hook = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
        folder = runner.work_dir if hook is None else hook.out_dir
        path = os.path.join(folder, PREEMPTED_NAME)
        meta = {'epoch': runner.epoch, 'iter': step}
        runner.message_hub.update_info('last_ckpt', path)
        average_buffers(runner.model)
        try:
            with raise_on_all_ranks():
                backend_args = None if hook is None else hook.backend_args
                runner.save_checkpoint(folder, PREEMPTED_NAME, meta=meta, backend_args=backend_args)
                if is_main_process():
                    atomic_write(Path(runner.work_dir, 'last_checkpoint'), path.encode())
                    mark_preempted()
        except (OSError, UserError) as error:
            raise UserError(
                f'{stopped}, but {path} could not be saved: {getattr(error, "strerror", None) or error}; '
                '--resume continues from the previous checkpoint'
            ) from error
        # A launcher may end all ranks when the first one exits: wait until the file is complete.
        barrier()
        runner.logger.info(f'{stopped}, saved to {path}; continue with: {resume_command(sys.argv)}')
        stop_request.ignore_signals()
        raise SystemExit(exit_code())


def exit_code() -> int:
    """Return the exit code of this rank: 75, or 0 for ranks above 0 of srun and mpirun.

    Those launchers end all ranks when one fails, and report the highest code. The elastic agent decides for
    the workers of its own machine, so each of them has to exit with 75.
    """
    return EXIT_PREEMPTED if is_main_process() or 'TORCHELASTIC_RUN_ID' in os.environ else 0


def reduce_signal() -> int:
    """Return a stop signal that any rank received, the same on all ranks, or 0."""
    signum = torch.tensor(stop_request.signum)
    all_reduce(signum, 'max')
    return int(signum)
