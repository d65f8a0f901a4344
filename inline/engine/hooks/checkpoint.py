"""Checkpoint hook that leaves a complete, resumable checkpoint on disk at every moment."""

import re
from collections import deque
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmengine.dist import all_reduce_params, get_world_size, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner
from torch import nn

from inline.checkpoints import compare_state_dict
from inline.engine.distributed.setup import raise_on_all_ranks
from inline.engine.loops import ResumableEpochTrainLoop
from inline.engine.resume import RUN_ID, StartedRun
from inline.engine.training_state import check_training_state
from inline.registry import HOOKS
from inline.utils.arguments import format_value, hint
from inline.utils.atomic import atomic_write, remove_temporary_files
from inline.utils.errors import UserError

# Key of a checkpoint's metadata: number of processes, batch size and number of samples.
DATA_SPLIT = 'data_split'


class NotSavedError(Exception):
    """A checkpoint could not be written; the message gives the reason."""


class _SynchronizedSaves:
    """Proxy of a runner whose ``save_checkpoint`` raises NotSavedError on all ranks if it fails on one."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def save_checkpoint(self, *args: Any, **options: Any) -> None:
        with _raise_not_saved():
            self._runner.save_checkpoint(*args, **options)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's checkpoint hook with atomic files and an order of operations that is safe against crashes.

    It writes the new checkpoint first, then ``last_checkpoint``, and deletes outdated files last. If the disk
    is full, the previous files are kept and training continues until the next save; it is an error only
    after the last step. When a run is resumed, the hook repeats a validation that the interrupted run missed.

    A resumed checkpoint lists files of its run. The hook accepts from that list only names that it would
    choose itself, in its own output folder. So a copied run does not touch the original, and a malicious
    checkpoint cannot delete other files.

    Every checkpoint stores the id of its run and what an exact resume depends on: the number of processes,
    the batch size and the number of training samples.
    """

    keep_ckpt_ids: deque[int]
    _run_id: str | None = None

    def before_train(self, runner: Runner) -> None:
        if is_main_process():
            started = StartedRun.read(runner.work_dir)
            self._run_id = started.run_id if started is not None else None
        infos = runner.message_hub.runtime_info
        resumed = {key: infos.pop(key) for key in self._file_keys() if key in infos}
        super().before_train(runner)
        self._adopt_files(runner, resumed)
        if is_main_process():
            self._remove_temporary_files(runner)
        if runner._resume and self._missed_validation(runner):
            runner.logger.info('repeating the validation that followed the last step of the checkpoint')
            runner.val_loop.run()

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Refuse to resume the checkpoint of a different model, whose weights MMEngine would load in part.

        Warn if the number of processes, the batch size or the number of training samples has changed.
        """
        if not runner._resume:
            return
        model = getattr(runner.model, 'module', runner.model)
        report = compare_state_dict(model, checkpoint['state_dict'])
        if not report.exact:
            raise UserError(f'cannot resume from the checkpoint of a different model: {report.describe()}')
        check_training_state(runner, checkpoint)
        # Earlier versions did not save it.
        saved = (checkpoint.get('meta') or {}).get(DATA_SPLIT)
        if isinstance(saved, dict) and (changes := format_changes(saved, data_split(runner))):
            runner.logger.warning(f'resume: the continuation is not exact, {changes} changed')

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        if self._run_id is not None:
            checkpoint['meta'][RUN_ID] = self._run_id
        checkpoint['meta'][DATA_SPLIT] = data_split(runner)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        runner.message_hub.update_info('iter_validated', runner.iter)
        super().after_val_epoch(runner, metrics or {})

    def after_train(self, runner: Runner) -> None:
        try:
            super().after_train(runner)
        except OSError as error:
            raise UserError(
                f'the checkpoint to publish could not be saved to {self.out_dir}: {error.strerror}; '
                'free some space and continue with --resume'
            ) from error

    def _save_checkpoint(self, runner: Runner) -> None:
        try:
            super()._save_checkpoint(_SynchronizedSaves(runner))
        except NotSavedError as error:
            is_last = self.is_last_train_epoch if self.by_epoch else self.is_last_train_iter
            if is_last(runner):
                raise UserError(
                    f'the last checkpoint could not be saved to {self.out_dir}: {error}; '
                    'free some space and continue with --resume'
                ) from error
            runner.logger.warning(
                f'checkpoint not saved to {self.out_dir}: {error}; the previous one is kept and training '
                'continues until the next save'
            )

    def _save_checkpoint_with_step(self, runner: Any, step: int, meta: dict[str, Any]) -> None:
        average_buffers(runner.model)
        previous = {key: runner.message_hub.runtime_info.get(key) for key in ('keep_ckpt_ids', 'last_ckpt')}
        steps = list(self.keep_ckpt_ids) if self.max_keep_ckpts > 0 else []
        if step not in steps[-1:]:
            steps.append(step)
        path = self._path(step)
        runner.message_hub.update_info('last_ckpt', path)
        if self.max_keep_ckpts > 0:
            # Includes the steps to be deleted after this save. If the process is killed before that, the
            # resumed run deletes them.
            runner.message_hub.update_info('keep_ckpt_ids', steps)
        try:
            runner.save_checkpoint(
                self.out_dir,
                self.filename_tmpl.format(step),
                self.file_client_args,
                save_optimizer=self.save_optimizer,
                save_param_scheduler=self.save_param_scheduler,
                meta=meta,
                by_epoch=self.by_epoch,
                backend_args=self.backend_args,
                **self.args,
            )
            self._write_last_checkpoint(runner, path)
        except NotSavedError:
            _restore(runner, previous)
            raise
        self.last_ckpt = path
        if self.max_keep_ckpts > 0:
            self.keep_ckpt_ids = deque(steps, self.max_keep_ckpts)
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
            for outdated in steps[: -self.max_keep_ckpts]:
                self._remove(runner, self._path(outdated))

    def _write_last_checkpoint(self, runner: Any, path: str) -> None:
        """Write the file that names the newest checkpoint; delete that checkpoint if this fails."""
        file = Path(runner.work_dir, 'last_checkpoint')
        try:
            with _raise_not_saved():
                if is_main_process():
                    atomic_write(file, path.encode())
        except NotSavedError:
            if is_main_process() and (not file.is_file() or file.read_text() != path):
                self._remove(runner, path)
            raise

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, float]) -> None:
        if not self.save_best:
            return
        for name in self.key_indicators if metrics else ():
            if name not in (*metrics, 'auto'):
                raise UserError(
                    f'save_best {name!r} of the checkpoint hook: the validation has no such metric, '
                    f'it gives {", ".join(metrics)}{hint(name, metrics)}'
                )
        hub = runner.message_hub
        old = self._best_paths()
        previous = {key: value for key, value in hub.runtime_info.items() if 'best_' in key}
        # MMEngine would delete the old files before it saves the new one: hide them from it.
        self._set_best_paths(dict.fromkeys(old))
        hub.update_info('outdated_ckpts', [path for path in old.values() if path])
        try:
            super()._save_best_checkpoint(_SynchronizedSaves(runner), metrics)
        except NotSavedError as error:
            for path in self._best_paths().values():
                if path and path not in old.values():
                    self._remove(runner, path)
            self._set_best_paths(old)
            for key in [key for key in hub.runtime_info if 'best_' in key]:
                hub.pop_info(key)
            _restore(runner, previous)
            runner.logger.warning(
                f'best checkpoint not saved to {self.out_dir}: {error}; the previous one is kept'
            )
        else:
            self._set_best_paths({key: path or old.get(key) for key, path in self._best_paths().items()})
            for path in old.values():
                if path and path not in self._best_paths().values():
                    self._remove(runner, path)
                    runner.logger.info(f'removed the previous best checkpoint {path}')
        hub.update_info('outdated_ckpts', [])

    def _file_keys(self) -> list[str]:
        """Return the keys of the message hub that name files of this hook."""
        return [
            'outdated_ckpts',
            *(['keep_ckpt_ids'] if self.max_keep_ckpts > 0 else []),
            *(map(_best_key, self._best_paths()) if self.save_best else []),
        ]

    def _adopt_files(self, runner: Runner, resumed: dict[str, Any]) -> None:
        """Take over the files that the resumed run lists, if they are ours, and delete outdated ones."""
        if self.save_best:
            best = {
                metric: self._own_best_path(resumed.get(_best_key(metric))) for metric in self._best_paths()
            }
            self._set_best_paths(best)
            for metric, path in best.items():
                if path is not None:
                    runner.message_hub.update_info(_best_key(metric), path)
        outdated = [self._own_best_path(path) for path in _as_list(resumed.get('outdated_ckpts'))]
        if 'keep_ckpt_ids' in resumed:
            steps = [step for step in _as_list(resumed['keep_ckpt_ids']) if isinstance(step, int)]
            outdated += [self._path(step) for step in steps[: -self.max_keep_ckpts]]
            self.keep_ckpt_ids = deque(steps, self.max_keep_ckpts)
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        for path in outdated:
            if path is not None:
                self._remove(runner, path)
        runner.message_hub.update_info('outdated_ckpts', [])

    def _own_best_path(self, listed: Any) -> str | None:
        """Return the path in our folder of a listed best checkpoint, None if its name is not one of ours."""
        name = Path(str(listed)).name
        numbered = r'\d+'.join(map(re.escape, re.split(r'\{.*?\}', self.filename_tmpl.replace('/', '_'))))
        path = self.file_backend.join_path(self.out_dir, name)
        is_best = re.fullmatch(f'best_.+_{numbered}', name) is not None
        return path if is_best and self.file_backend.isfile(path) else None

    def _path(self, step: int) -> str:
        return str(self.file_backend.join_path(self.out_dir, self.filename_tmpl.format(step)))

    def _best_paths(self) -> dict[str, str | None]:
        """Return the best checkpoint of each metric; the key of a single metric is ''."""
        if len(self.key_indicators) == 1:
            return {'': self.best_ckpt_path}
        return {metric: self.best_ckpt_path_dict.get(metric) for metric in self.key_indicators}

    def _set_best_paths(self, paths: dict[str, str | None]) -> None:
        if len(self.key_indicators) == 1:
            self.best_ckpt_path = paths['']
        else:
            self.best_ckpt_path_dict = paths

    def _remove(self, runner: Any, path: str) -> None:
        if not is_main_process():
            return
        try:
            if self.file_backend.isfile(path):
                self.file_backend.remove(path)
        except OSError as error:
            runner.logger.warning(f'{path} could not be removed: {error.strerror}')

    def _remove_temporary_files(self, runner: Runner) -> None:
        for folder in {str(self.out_dir), runner.work_dir}:
            try:
                names = remove_temporary_files(folder)
            except OSError as error:
                # Do not raise: the other ranks would wait.
                runner.logger.warning(f'temporary files in {folder} could not be removed: {error.strerror}')
                continue
            if names:
                runner.logger.info(f'removed temporary files of an interrupted save in {folder}: {names}')

    @staticmethod
    def _missed_validation(runner: Runner) -> bool:
        """Return whether the checkpoint was saved after a step that a validation follows, but before it."""
        loop = runner.train_loop
        if runner.val_loop is None or loop.iter == 0:
            return False
        if runner.message_hub.runtime_info.get('iter_validated') == loop.iter:
            return False
        step, end = loop.iter, loop.max_iters
        if isinstance(loop, ResumableEpochTrainLoop):
            if loop.batches_done():
                return False
            step, end = loop.epoch, loop.max_epochs
        loop._decide_current_val_interval()
        return step >= loop.val_begin and (step % loop.val_interval == 0 or step == end)


def data_split(runner: Runner) -> dict[str, int | None]:
    """Return how the training data is divided into batches; unknown values are None."""
    loader = runner.train_dataloader
    return {
        'processes': get_world_size(),
        'batch size': getattr(loader.batch_sampler, 'batch_size', None) or loader.batch_size,
        'training samples': len(loader.dataset) if isinstance(loader.dataset, Sized) else None,
    }


def format_changes(saved: dict[str, Any], now: dict[str, Any]) -> str:
    """Describe the values that differ, for example ``processes (2 → 1)``; '' if none do."""
    return ', '.join(
        f'{name} ({format_value(saved[name])} → {value})'
        for name, value in now.items()
        if name in saved and saved[name] != value
    )


def average_buffers(model: nn.Module) -> None:
    """Average BatchNorm statistics over all ranks before a checkpoint is saved.

    They differ between ranks and only one file is saved. With the average, an uninterrupted run continues
    with the same statistics as a resumed one.
    """
    all_reduce_params([b for b in model.buffers() if b.is_floating_point()], op='mean')


@contextmanager
def _raise_not_saved() -> Iterator[None]:
    """Raise NotSavedError on all ranks if a file cannot be written on one of them."""
    try:
        with raise_on_all_ranks():
            yield
    except (OSError, UserError) as error:
        raise NotSavedError(getattr(error, 'strerror', None) or str(error)) from error


def _best_key(metric: str) -> str:
    """Return the key of the message hub for the best checkpoint of a metric."""
    return f'best_ckpt_{metric}' if metric else 'best_ckpt'


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _restore(runner: Any, infos: dict[str, Any]) -> None:
    for key, value in infos.items():
        if value is None:
            runner.message_hub.runtime_info.pop(key, None)
        else:
            runner.message_hub.update_info(key, value)
