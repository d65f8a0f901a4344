"""A hook that lets training skip samples that cannot be read. See ``docs/data_validation.md``.

The annotations are checked before training, by :func:`inline.datasets.validation.checks.validate_datasets`,
and the files while they are loaded, by the transforms in :mod:`inline.datasets.loading`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from inline.datasets.validation.checks import FOLDER
from inline.datasets.validation.skip_unreadable import (
    clear_skipped,
    format_skipped,
    read_skipped,
    skip_unreadable,
)
from inline.engine.distributed.setup import raise_on_all_ranks
from inline.engine.terminal import FILE_ONLY
from inline.registry import HOOKS


@HOOKS.register_module()
class DataValidationHook(Hook):
    """Skip training samples that cannot be read, and log them when they occur and at the end.

    Args:
        max_skipped: How many samples of a dataset may be skipped before training stops: a fraction of the
            dataset below 1, rounded up, or a number of samples from 1 on.
        interval: Iterations between two checks for newly skipped samples.
    """

    priority = 'LOW'

    def __init__(self, max_skipped: float = 0.01, interval: int = 50) -> None:
        self.max_skipped = max_skipped
        self.interval = interval
        self._reported = 0

    def before_train(self, runner: Runner) -> None:
        self.folder = Path(runner.work_dir, FOLDER)
        # Synchronizes the ranks: none may load data before the lists of an earlier run are deleted.
        with raise_on_all_ranks():
            clear_skipped(self.folder)
        for i, dataset in enumerate(built_datasets(runner.train_dataloader.dataset)):
            skip_unreadable(dataset, self.folder, f'dataset_{i}', self.max_skipped)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,  # noqa: ARG002 (MMEngine's signature)
        data_batch: Any = None,  # noqa: ARG002
        outputs: Any = None,  # noqa: ARG002
    ) -> None:
        if self.every_n_train_iters(runner, self.interval):
            self._report_new(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        self._report_new(runner)

    def after_train(self, runner: Runner) -> None:
        # The summary at the end of the run includes the number.
        runner.logger.info(format_skipped(read_skipped(self.folder)), extra=FILE_ONLY)

    def _report_new(self, runner: Runner) -> None:
        skipped = read_skipped(self.folder) if is_main_process() else []
        if len(skipped) > self._reported:
            self._reported = len(skipped)
            runner.logger.warning(format_skipped(skipped))


def built_datasets(dataset: Any) -> Iterator[BaseDataset]:
    """Yield the datasets inside wrappers such as RepeatDataset and ConcatDataset."""
    inner = getattr(dataset, 'datasets', None) or getattr(dataset, 'dataset', None)
    if inner is not None:
        for child in inner if isinstance(inner, list) else [inner]:
            yield from built_datasets(child)
    elif isinstance(dataset, BaseDataset):
        yield dataset
