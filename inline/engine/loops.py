"""Training loops with exact resume: a resumed run does what the uninterrupted run would have done.

MMEngine saves neither random states nor the position in an epoch, and the random numbers of a data worker
depend on everything that the worker has drawn before. Here they depend on the seed of the run and on

- the step and the rank, for the model (dropout, stochastic depth, Mixup, CutMix);
- the position in the data stream, for the augmentation of a sample.

So there is no state to save, the number of workers does not matter, and the data is the same for any number
of processes with the same total batch size.
"""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_dist_info, get_rank
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from inline.registry import LOOPS
from inline.utils.errors import UserError

# Part of the seed entropy, so that steps and samples never share random numbers.
_STEP, _SAMPLE = 0, 1


def seed_all(*entropy: int) -> int:
    """Seed the CPU generators of Python, numpy and torch; return the seed of torch."""
    state = np.random.SeedSequence(entropy).generate_state(4)
    random.seed(state.tobytes())
    np.random.seed(state)
    seed = int.from_bytes(state[:2].tobytes(), 'little')
    torch.default_generator.manual_seed(seed)
    return seed


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed all generators, on every device, for one training step of one rank."""
    torch.manual_seed(seed_all(seed, _STEP, step, rank))


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the CPU random states at the end of the block."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@dataclass(frozen=True)
class Batch:
    """What the batch sampler passes to a data worker.

    Attributes:
        indices: Indices of the samples in the dataset.
        positions: Position of each sample in its pass through the data, over all ranks.
        entropy: Seed of the run and number of the pass.
    """

    indices: list[int]
    positions: range
    entropy: tuple[int, int]


class SeededBatchSampler:
    """A batch sampler that gives each sample its position, and can start at any batch without loading data.

    Args:
        batch_sampler: The batch sampler of the config.
        seed: Seed of the run.
        infinite: Whether to start the next pass at the end of a pass. Otherwise an iteration is one pass,
            which :meth:`start_at` selects.
    """

    def __init__(self, batch_sampler: Any, seed: int, infinite: bool) -> None:
        self.batch_sampler, self.seed, self.infinite = batch_sampler, seed, infinite
        # MMEngine calls `batch_sampler.sampler.set_epoch`.
        self.sampler: Any = getattr(batch_sampler, 'sampler', None)
        self.batch_size: int | None = getattr(batch_sampler, 'batch_size', None)
        self.rank, self.world_size = get_dist_info()
        self.start_at(0, 0)

    def start_at(self, number: int, skip: int) -> None:
        """Let the next iteration start in pass `number`, after `skip` batches."""
        self._number, self._skip = number, skip

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Batch]:
        skip, self._skip = self._skip, 0
        for number in count(self._number):
            position, num_batches = self.rank, 0
            for indices in self.batch_sampler:
                end = position + len(indices) * self.world_size
                if num_batches >= skip:
                    yield Batch(list(indices), range(position, end, self.world_size), (self.seed, number))
                position = end
                num_batches += 1
            if not self.infinite:
                return
            if num_batches == 0:
                raise UserError('the training data has no complete batch: reduce the batch size')
            skip = max(0, skip - num_batches)
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(number + 1)


def use_seeded_batches(loader: DataLoader, seed: int, infinite: bool) -> SeededBatchSampler | None:
    """Seed each sample of `loader` by its position, in place.

    Returns:
        The new batch sampler, or None for an iterable dataset, which defines its own order.
    """
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return None
    batch_sampler = SeededBatchSampler(loader.batch_sampler, seed, infinite)
    # torch forbids this assignment because running workers would keep the old sampler. None are running yet.
    vars(loader)['batch_sampler'] = batch_sampler
    # torch calls this method, if a dataset has it, with all indices of a batch.
    vars(loader.dataset)['__getitems__'] = partial(_load_batch, loader.dataset)
    return batch_sampler


def _load_batch(dataset: Dataset, batch: Batch | list[int]) -> list[Any]:
    """Load the samples of a batch, each with the random numbers of its position."""
    if not isinstance(batch, Batch):
        return [dataset[index] for index in batch]
    samples = []
    # Without workers this runs in the training process, whose random state belongs to the step.
    with preserve_random_state():
        for index, position in zip(batch.indices, batch.positions, strict=True):
            seed_all(batch.entropy[0], _SAMPLE, batch.entropy[1], position)
            samples.append(dataset[index])
    return samples


class _DataIterator:
    """MMEngine's data iterator of the iteration-based loop, started at any step without loading data."""

    def __init__(self, loader: DataLoader, batch_sampler: SeededBatchSampler) -> None:
        self._loader, self._batch_sampler = loader, batch_sampler
        self._iterator: Iterator[Any] | None = None

    def skip_iter(self, steps: int) -> None:
        self._batch_sampler.start_at(0, steps)

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._loader)
        return next(self._iterator)


@LOOPS.register_module()
class ResumableIterTrainLoop(IterBasedTrainLoop):
    """MMEngine's iteration-based loop, resumed with the next batch and the same random numbers."""

    def run(self) -> nn.Module:
        batch_sampler = use_seeded_batches(self.dataloader, self.runner.seed, infinite=True)
        if batch_sampler is not None:
            self.dataloader_iterator = _DataIterator(self.dataloader, batch_sampler)
        return super().run()

    def run_iter(self, data_batch: Any) -> None:
        seed_step(self.runner.seed, self._iter, get_rank())
        super().run_iter(data_batch)


@LOOPS.register_module()
class ResumableEpochTrainLoop(EpochBasedTrainLoop):
    """MMEngine's epoch-based loop, resumed in the middle of an epoch if it was interrupted there."""

    _batches_done = 0

    def run(self) -> nn.Module:
        self._batch_sampler = use_seeded_batches(self.dataloader, self.runner.seed, infinite=False)
        return super().run()

    def run_epoch(self) -> None:
        self._batches_done = self.batches_done()
        if self._batches_done == 0:
            started = [self._epoch, self._iter, len(self.dataloader)]
            self.runner.message_hub.update_info('epoch_started', started)
        if self._batch_sampler is not None:
            self._batch_sampler.start_at(self._epoch, self._batches_done)
        super().run_epoch()

    def run_iter(self, idx: int, data_batch: Any) -> None:
        seed_step(self.runner.seed, self._iter, get_rank())
        super().run_iter(self._batches_done + idx, data_batch)

    def batches_done(self) -> int:
        """Return how many batches of the current epoch were done before the run was interrupted."""
        epoch, first, length = self.runner.message_hub.runtime_info.get('epoch_started', (-1, 0, 0))
        done = self._iter - first
        if epoch != self._epoch or done == 0:
            return 0
        if length != len(self.dataloader):
            print_log(
                f'epoch {epoch + 1} was interrupted after {done} of {length} batches and has '
                f'{len(self.dataloader)} now: it starts from the beginning',
                logger='current',
                level=logging.WARNING,
            )
            return 0
        return done
