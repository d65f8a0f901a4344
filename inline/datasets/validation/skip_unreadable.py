"""Skipping of unreadable training samples, with a limit and a list of what was skipped."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset, Compose

from inline.utils.errors import BadDataError, UnreadableError


def skip_unreadable(dataset: BaseDataset, folder: Path, name: str, limit: float) -> None:
    """Make a dataset skip samples that cannot be read, by replacing its pipeline.

    Args:
        dataset: A built dataset.
        folder, name, limit: As in :class:`SkippedSamples`.
    """
    dataset.pipeline = SkipUnreadable(dataset, SkippedSamples(folder, name, len(dataset), limit))


class SkipUnreadable(Compose):
    """A pipeline that replaces an unreadable sample with the next readable one.

    It uses the next index, not a random one, so that runs are reproducible.
    """

    def __init__(self, dataset: BaseDataset, skipped: 'SkippedSamples') -> None:
        super().__init__(dataset.pipeline.transforms)
        self.dataset = dataset
        self.skipped = skipped

    def __call__(self, data: dict[str, Any]) -> dict[str, Any] | None:
        first = data['sample_idx']
        for index in range(first + 1, first + len(self.dataset) + 1):
            try:
                return super().__call__(data)
            except UnreadableError as error:
                self.skipped.add(str(error))
                data = self.dataset.get_data_info(index % len(self.dataset))
        raise BadDataError(
            f'none of {len(self.dataset):,} samples can be read; {format_skipped(self.skipped.read())}'
        )


@dataclass(frozen=True)
class SkippedSamples:
    """The skipped samples of a dataset, one per line in a file to which all workers of a rank append.

    Appending to a file needs no lock and no reader process, so it cannot block a worker, and nothing is lost
    when a worker dies.

    Attributes:
        folder: Folder with one file per rank and dataset.
        name: Name of the dataset in that folder.
        total: Number of samples of the dataset.
        limit: How many samples may be skipped: a fraction of all (rounded up) below 1, a number from 1 on.
    """

    folder: Path
    name: str
    total: int
    limit: float

    def add(self, message: str) -> None:
        """Record a sample once; raise a :class:`BadDataError` if there are too many."""
        messages = self.read()
        if message not in messages:
            messages.append(message)
            path = self.folder / f'{self.name}_rank_{os.environ.get("RANK", "0")}.txt'
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open('a') as file:
                    file.write(f'{message}\n')
            except OSError as error:
                # Otherwise the other processes would not count this sample.
                raise BadDataError(f'{message}; {str(path)!r} cannot be written: {error.strerror}') from error
        if len(messages) > self.allowed:
            raise BadDataError(
                f'{len(messages):,} of {self.total:,} training samples cannot be read, but '
                f'data_validation.max_skipped is {self.limit:g}: the first is {messages[0]}; '
                f'all are listed in {str(self.folder)!r}'
            )

    @property
    def allowed(self) -> int:
        """The limit as a number of samples."""
        return math.ceil(self.limit * self.total) if self.limit < 1 else int(self.limit)

    def read(self) -> list[str]:
        """Return what all ranks that share this file system have skipped, without duplicates."""
        return read_skipped(self.folder, self.name)


def read_skipped(folder: Path, name: str = '*') -> list[str]:
    """Return the lines of all files of a folder, without duplicates and unfinished last lines."""
    lines: dict[str, None] = {}
    for path in sorted(folder.glob(f'{name}_rank_*.txt')):
        lines.update(dict.fromkeys(path.read_text().split('\n')[:-1]))
    return list(lines)


def clear_skipped(folder: Path) -> None:
    """Delete the lists of an earlier start of the run."""
    for path in folder.glob('dataset_*_rank_*.txt'):
        path.unlink(missing_ok=True)


def format_skipped(messages: list[str], shown: int = 3) -> str:
    """Describe the skipped samples in one line: their number and the first few."""
    if not messages:
        return 'data validation: no training sample skipped'
    first = '; '.join(messages[:shown]) + ('; …' if len(messages) > shown else '')
    return f'data validation: {len(messages):,} training sample{"s"[: len(messages) > 1]} skipped: {first}'
