"""Training goes on past samples that cannot be read: they are left out, counted, and not too many."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset, Compose
from mmengine.registry import DATASETS

from inline.errors import BadDataError, UnreadableError, UserError

CHECKED = 'InLineCheckedDataset'


# In MMEngine's own registry: asking ours for it would import mmpretrain in a run of mmdet or mmseg.
@DATASETS.register_module(name=CHECKED)
def build_checked(dataset: dict[str, Any], skipping: dict[str, Any] | None = None) -> BaseDataset:
    """The data set of a config, not empty, and with `skipping` one that leaves out what cannot be read.

    Args:
        dataset: The data set's own config.
        skipping: What :class:`SkippedSamples` takes, but for the number of samples.
    """
    try:
        built = DATASETS.build(dataset)
        built.full_init()
    except ValueError as error:
        # What MMEngine says where it packs a list of no samples.
        if 'need at least one array to concatenate' not in str(error):
            raise
        built = ()
    if len(built) == 0:
        raise UserError(f'{_describe(dataset)} has no samples')
    if skipping is not None:
        built.pipeline = SkipUnreadable(built, SkippedSamples(total=len(built), **skipping))
    return built


class SkipUnreadable(Compose):
    """A data set's pipeline that takes the next sample for one that cannot be read.

    The next one by index, not a random one: what is trained on depends on the data and the seed alone.
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
        raise BadDataError(f'not one of {len(self.dataset):,} samples can be read; {self.skipped.summary()}')


@dataclass(frozen=True)
class SkippedSamples:
    """The samples left out so far, one a line in a file that all processes of a rank append to.

    A file needs no lock and no reader, so it can neither block a process that loads data nor be lost with it.

    Attributes:
        folder: Holds a file for each rank and data set.
        name: The data set's, within the folder.
        total: Number of samples of the data set.
        limit: How many may be left out: a share of all below 1, rounded up, or a number from 1 on.
    """

    folder: str
    name: str
    total: int
    limit: float

    def add(self, message: str) -> None:
        """Write a sample down, once, and stop the run where there are too many."""
        known = self.read()
        if message not in known:
            known.append(message)
            path = Path(self.folder, f'{self.name}_rank_{os.environ.get("RANK", "0")}.txt')
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open('a') as file:
                    file.write(f'{message}\n')
            except OSError as error:
                # What is not written down is not counted by the other processes.
                raise BadDataError(f'{message}; {str(path)!r} cannot be written: {error.strerror}') from error
        if len(known) > self.allowed:
            raise BadDataError(
                f'{len(known):,} of {self.total:,} training samples cannot be read, and bad_data.max_skipped '
                f'is {self.limit:g}: the first is {known[0]}; all are in {self.folder!r}'
            )

    @property
    def allowed(self) -> int:
        return math.ceil(self.limit * self.total) if self.limit < 1 else int(self.limit)

    def read(self) -> list[str]:
        """What all ranks on this file system have left out, each sample once."""
        return read_skipped(Path(self.folder), self.name)

    def summary(self) -> str:
        return describe_skipped(self.read())


def read_skipped(folder: Path, name: str = '*') -> list[str]:
    """Lines of the files of a folder, each once; a last line that is not whole yet is left for later."""
    lines: dict[str, None] = {}
    for path in sorted(folder.glob(f'{name}_rank_*.txt')):
        lines.update(dict.fromkeys(path.read_text().split('\n')[:-1]))
    return list(lines)


def describe_skipped(messages: list[str], shown: int = 3) -> str:
    """The number of samples left out and the first of them, in one line."""
    if not messages:
        return 'bad data: no training sample was skipped'
    first = '; '.join(messages[:shown]) + ('; …' if len(messages) > shown else '')
    what = 'training sample was' if len(messages) == 1 else 'training samples were'
    return f'bad data: {len(messages):,} {what} skipped: {first}'


def _describe(dataset: dict[str, Any]) -> str:
    """Where a data set lies, as its config says."""
    places = (dataset.get('ann_file'), dataset.get('data_prefix'), dataset.get('split'))
    inner = next((place for place in places if place), '')
    if isinstance(inner, dict):
        inner = next(iter(inner.values()), '')
    return f'the data set {str(Path(dataset.get("data_root") or "", inner))!r}'
