"""MMEngine's training loops, made so that a resumed run does what an uninterrupted one would have done.

MMEngine saves neither random states nor the place in an epoch, and the random numbers of a data worker
depend on all that it drew before. Here they depend on the run's seed and on the place alone: each step and
each sample of the stream has numbers of its own. So there is nothing to save, whatever the number of
workers, and the data is the same for any number of processes with the same total batch.
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
from mmengine.dist import get_dist_info
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from inline.errors import UserError
from inline.registry import LOOPS

# What random numbers are for, so that no two uses share them.
_FOR_A_STEP, _FOR_A_SAMPLE = 0, 1


def seed_all(*words: int) -> int:
    """Seed Python's, numpy's and torch's numbers for the CPU; returns the seed that torch got."""
    state = np.random.SeedSequence(words).generate_state(4)
    random.seed(state.tobytes())
    np.random.seed(state)
    seed = int.from_bytes(state[:2].tobytes(), 'little')
    torch.default_generator.manual_seed(seed)
    return seed


def seed_step(seed: int, step: int) -> None:
    """Give a training step its own random numbers, on every device."""
    torch.manual_seed(seed_all(seed, _FOR_A_STEP, step))


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Leave the random states of this process as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@dataclass(frozen=True)
class Batch:
    """What a data worker is asked for.

    Attributes:
        indices: Which samples of the dataset.
        places: Where each stands in its pass through the data, counted over all processes.
        entropy: The run's seed and the number of the pass.
    """

    indices: list[int]
    places: range
    entropy: tuple[int, int]


class PlacedBatches:
    """A batch sampler that tells each sample's place and can begin anywhere, without loading what it skips.

    Args:
        batches: The batch sampler of the config.
        seed: The run's.
        endless: Whether pass follows pass; else each iteration is one pass, told by :meth:`begin`.
    """

    def __init__(self, batches: Any, seed: int, endless: bool) -> None:
        self.batches, self.seed, self.endless = batches, seed, endless
        # MMEngine tells the sampler in here which epoch it is.
        self.sampler: Any = getattr(batches, 'sampler', None)
        self.rank, self.world_size = get_dist_info()
        self.begin(0, 0)

    def begin(self, number: int, skip: int) -> None:
        """Let the next iteration be pass `number`, from its batch `skip` on."""
        self._number, self._skip = number, skip

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        skip, self._skip = self._skip, 0
        for number in count(self._number):
            place, drawn = self.rank, 0
            for indices in self.batches:
                end = place + len(indices) * self.world_size
                if drawn >= skip:
                    yield Batch(list(indices), range(place, end, self.world_size), (self.seed, number))
                place = end
                drawn += 1
            if not self.endless:
                return
            if drawn == 0:
                raise UserError('the training data has no whole batch: take a smaller batch, or more images')
            skip = max(0, skip - drawn)
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(number + 1)


def place_batches(loader: DataLoader, seed: int, endless: bool) -> PlacedBatches | None:
    """Let `loader` draw by place; None for a stream of data, whose order is its own."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return None
    batches = PlacedBatches(loader.batch_sampler, seed, endless)
    # torch keeps these from being set, lest workers that run already be left with the old ones. None do yet.
    vars(loader)['batch_sampler'] = batches
    # torch asks a dataset that has this for whole batches.
    vars(loader.dataset)['__getitems__'] = partial(_load, loader.dataset)
    return batches


def _load(dataset: Dataset, batch: Batch | list[int]) -> list[Any]:
    """The samples of a batch, each with the random numbers of its place."""
    if not isinstance(batch, Batch):
        return [dataset[index] for index in batch]
    samples = []
    # Without workers this runs in the training process, whose own numbers are the step's.
    with random_state_kept():
        for index, place in zip(batch.indices, batch.places, strict=True):
            seed_all(batch.entropy[0], _FOR_A_SAMPLE, batch.entropy[1], place)
            samples.append(dataset[index])
    return samples


class _Stream:
    """What MMEngine's loop by iterations draws from: endless, and begun where it is told."""

    def __init__(self, loader: DataLoader, batches: PlacedBatches) -> None:
        self._loader, self._batches = loader, batches
        self._iterator: Iterator[Any] | None = None

    def skip_iter(self, steps: int) -> None:
        self._batches.begin(0, steps)

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._loader)
        return next(self._iterator)


@LOOPS.register_module()
class ExactIterLoop(IterBasedTrainLoop):
    """MMEngine's loop by iterations, resumed with the very next batch and the same random numbers."""

    def run(self) -> nn.Module:
        batches = place_batches(self.dataloader, self.runner.seed, endless=True)
        if batches is not None:
            self.dataloader_iterator = _Stream(self.dataloader, batches)
        return super().run()

    def run_iter(self, data_batch: Any) -> None:
        seed_step(self.runner.seed, self._iter)
        super().run_iter(data_batch)


@LOOPS.register_module()
class ExactEpochLoop(EpochBasedTrainLoop):
    """MMEngine's loop by epochs, resumed in the middle of one if that is where it was left."""

    _done = 0

    def run(self) -> nn.Module:
        self._batches = place_batches(self.dataloader, self.runner.seed, endless=False)
        return super().run()

    def run_epoch(self) -> None:
        self._done = self.batches_done()
        if self._done == 0:
            started = [self._epoch, self._iter, len(self.dataloader)]
            self.runner.message_hub.update_info('epoch_started', started)
        if self._batches is not None:
            self._batches.begin(self._epoch, self._done)
        super().run_epoch()

    def run_iter(self, idx: int, data_batch: Any) -> None:
        seed_step(self.runner.seed, self._iter)
        super().run_iter(self._done + idx, data_batch)

    def batches_done(self) -> int:
        """How many batches of this epoch were trained on before the run was resumed."""
        epoch, first, length = self.runner.message_hub.runtime_info.get('epoch_started', (-1, 0, 0))
        done = self._iter - first
        if epoch != self._epoch or done == 0:
            return 0
        if length != len(self.dataloader):
            print_log(
                f'epoch {epoch + 1} was left after {done} of its {length} batches and has '
                f'{len(self.dataloader)} now: it begins anew',
                logger='current',
                level=logging.WARNING,
            )
            return 0
        return done
