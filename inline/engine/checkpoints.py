"""Saving checkpoints so that there is a good one at every moment, whatever happens to the process or disk."""

import re
from collections import deque
from pathlib import Path
from typing import Any

from mmengine.dist import all_gather_object, all_reduce_params, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner
from torch import nn

from inline.engine.exact_loops import ExactEpochLoop
from inline.engine.pretrained import compare
from inline.errors import UserError
from inline.registry import HOOKS
from inline.whole_files import remove_leftovers, write_whole


class NotSavedError(Exception):
    """A checkpoint could not be written; the message says why."""


class _Together:
    """A runner whose failure to save is told to every process, so that none waits for the others."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def save_checkpoint(self, *args: Any, **options: Any) -> None:
        error = None
        try:
            self._runner.save_checkpoint(*args, **options)
        except OSError as failure:
            error = failure.strerror or str(failure)
        _raise_together(error)


@HOOKS.register_module()
class WholeCheckpointHook(CheckpointHook):
    """MMEngine's, in an order that leaves a good checkpoint behind at every moment.

    First the new file, whole; then ``last_checkpoint``, which names it; then what is outdated is removed. A
    full disk leaves all as it was: training goes on and the next save is tried, except after the last step.
    A validation that the process did not live to see is made up for when the run is resumed.

    What a resumed checkpoint says of other files is text out of a file: it counts for names that this hook
    gives, in the folder where it saves, and nowhere else. So a copied run leaves the original alone.
    """

    keep_ckpt_ids: deque[int]

    def before_train(self, runner: Runner) -> None:
        infos = runner.message_hub.runtime_info
        told = {key: infos.pop(key) for key in self._keys_of_files() if key in infos}
        super().before_train(runner)
        self._take_over(runner, told)
        if is_main_process():
            for folder in {str(self.out_dir), runner.work_dir}:
                for name in remove_leftovers(folder):
                    runner.logger.info(f'removed {name}, which a save that did not finish left in {folder}')
        if runner._resume and self._missed_validation(runner):
            runner.logger.info('the validation after the last step of the checkpoint is made up for')
            runner.val_loop.run()

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Refuse to resume another model: MMEngine would keep the weights of that name and draw the rest."""
        if runner._resume:
            fit = compare(getattr(runner.model, 'module', runner.model), checkpoint['state_dict'])
            if fit.missing or fit.misshapen or fit.unused:
                raise UserError(f'the checkpoint to resume is of another model: {fit.describe()}')

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        runner.message_hub.update_info('iter_validated', runner.iter)
        super().after_val_epoch(runner, metrics or {})

    def after_train(self, runner: Runner) -> None:
        try:
            super().after_train(runner)
        except OSError as error:
            raise UserError(
                f'the checkpoint to publish could not be saved to {self.out_dir}: {error.strerror}; '
                'make room there and go on with --resume'
            ) from error

    def _save_checkpoint(self, runner: Runner) -> None:
        try:
            super()._save_checkpoint(_Together(runner))
        except NotSavedError as error:
            last = self.is_last_train_epoch if self.by_epoch else self.is_last_train_iter
            if last(runner):
                raise UserError(
                    f'the last checkpoint could not be saved to {self.out_dir}: {error}; '
                    'make room there and go on with --resume'
                ) from error
            runner.logger.warning(
                f'checkpoint not saved to {self.out_dir}: {error}; the one before stays, training goes on, '
                'and the next save is tried'
            )

    def _save_checkpoint_with_step(self, runner: Any, step: int, meta: dict[str, Any]) -> None:
        average_buffers(runner.model)
        before = {key: runner.message_hub.runtime_info.get(key) for key in ('keep_ckpt_ids', 'last_ckpt')}
        steps = list(self.keep_ckpt_ids) if self.max_keep_ckpts > 0 else []
        if step not in steps[-1:]:
            steps.append(step)
        path = self._path_of(step)
        runner.message_hub.update_info('last_ckpt', path)
        if self.max_keep_ckpts > 0:
            # With those that go when this one is whole: resumed before that, MMEngine removes them.
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
            self._name_as_last(runner, path)
        except NotSavedError:
            _restore(runner, before)
            raise
        self.last_ckpt = path
        if self.max_keep_ckpts > 0:
            self.keep_ckpt_ids = deque(steps, self.max_keep_ckpts)
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
            for outdated in steps[: -self.max_keep_ckpts]:
                self._remove(runner, self._path_of(outdated))

    def _name_as_last(self, runner: Any, path: str) -> None:
        error = None
        if is_main_process():
            file = Path(runner.work_dir, 'last_checkpoint')
            try:
                write_whole(file, path.encode())
            except OSError as failure:
                error = failure.strerror or str(failure)
                if not file.is_file() or file.read_text() != path:
                    self._remove(runner, path)
        _raise_together(error)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, float]) -> None:
        if not self.save_best:
            return
        old = self._best()
        before = {key: value for key, value in runner.message_hub.runtime_info.items() if 'best_' in key}
        # MMEngine removes the old ones that it knows of before it saves the new.
        self._set_best(dict.fromkeys(old))
        runner.message_hub.update_info('outdated_ckpts', [path for path in old.values() if path])
        try:
            super()._save_best_checkpoint(_Together(runner), metrics)
        except NotSavedError as error:
            for path in self._best().values():
                if path and path not in old.values():
                    self._remove(runner, path)
            self._set_best(old)
            for key in [key for key in runner.message_hub.runtime_info if 'best_' in key]:
                runner.message_hub.pop_info(key)
            _restore(runner, before)
            runner.logger.warning(
                f'best checkpoint not saved to {self.out_dir}: {error}; the one before stays'
            )
        else:
            self._set_best({key: path or old.get(key) for key, path in self._best().items()})
            for path in old.values():
                if path and path not in self._best().values():
                    self._remove(runner, path)
                    runner.logger.info(f'The previous best checkpoint {path} is removed')
        runner.message_hub.update_info('outdated_ckpts', [])

    def _keys_of_files(self) -> list[str]:
        """By what names the message hub knows this hook's files."""
        return [
            'outdated_ckpts',
            *(['keep_ckpt_ids'] if self.max_keep_ckpts > 0 else []),
            *(map(_best_key, self._best()) if self.save_best else []),
        ]

    def _take_over(self, runner: Runner, told: dict[str, Any]) -> None:
        """Go on with the files of the resumed run that are this one's, and remove those that are outdated."""
        if self.save_best:
            best = {metric: self._own(told.get(_best_key(metric))) for metric in self._best()}
            self._set_best(best)
            for metric, path in best.items():
                if path is not None:
                    runner.message_hub.update_info(_best_key(metric), path)
        outdated = [self._own(path) for path in _as_list(told.get('outdated_ckpts'))]
        if 'keep_ckpt_ids' in told:
            steps = [step for step in _as_list(told['keep_ckpt_ids']) if isinstance(step, int)]
            outdated += [self._path_of(step) for step in steps[: -self.max_keep_ckpts]]
            self.keep_ckpt_ids = deque(steps, self.max_keep_ckpts)
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        for path in outdated:
            if path is not None:
                self._remove(runner, path)
        runner.message_hub.update_info('outdated_ckpts', [])

    def _own(self, told: Any) -> str | None:
        """The best checkpoint of that name in this hook's folder, if the name is one and it is there."""
        name = Path(str(told)).name
        numbered = r'\d+'.join(map(re.escape, re.split(r'\{.*?\}', self.filename_tmpl.replace('/', '_'))))
        path = self.file_backend.join_path(self.out_dir, name)
        is_best = re.fullmatch(f'best_.+_{numbered}', name) is not None
        return path if is_best and self.file_backend.isfile(path) else None

    def _path_of(self, step: int) -> str:
        return str(self.file_backend.join_path(self.out_dir, self.filename_tmpl.format(step)))

    def _best(self) -> dict[str, str | None]:
        """The best checkpoint by metric; of a single metric by no name."""
        if len(self.key_indicators) == 1:
            return {'': self.best_ckpt_path}
        return {metric: self.best_ckpt_path_dict.get(metric) for metric in self.key_indicators}

    def _set_best(self, paths: dict[str, str | None]) -> None:
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

    @staticmethod
    def _missed_validation(runner: Runner) -> bool:
        """Whether the checkpoint was saved where a validation follows, and before it."""
        loop = runner.train_loop
        if runner.val_loop is None or loop.iter == 0:
            return False
        if runner.message_hub.runtime_info.get('iter_validated') == loop.iter:
            return False
        step, end = loop.iter, loop.max_iters
        if isinstance(loop, ExactEpochLoop):
            if loop.batches_done():
                return False
            step, end = loop.epoch, loop.max_epochs
        loop._decide_current_val_interval()
        return step >= loop.val_begin and (step % loop.val_interval == 0 or step == end)


def _best_key(metric: str) -> str:
    """By what name the message hub knows the best checkpoint of a metric."""
    return f'best_ckpt_{metric}' if metric else 'best_ckpt'


def _as_list(told: Any) -> list[Any]:
    return told if isinstance(told, list) else []


def average_buffers(model: nn.Module) -> None:
    """Make BatchNorm's statistics the same in all processes before a checkpoint is saved.

    They differ by process and only one file is saved: from here on, they are equal in an uninterrupted run
    as they will be in a resumed one.
    """
    all_reduce_params([b for b in model.buffers() if b.is_floating_point()], op='mean')


def _raise_together(error: str | None) -> None:
    """Raise in every process what went wrong in one."""
    for one in all_gather_object(error):
        if one is not None:
            raise NotSavedError(one)


def _restore(runner: Any, infos: dict[str, Any]) -> None:
    for key, value in infos.items():
        if value is None:
            runner.message_hub.runtime_info.pop(key, None)
        else:
            runner.message_hub.update_info(key, value)
