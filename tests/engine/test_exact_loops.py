"""Data by place: begun anywhere, with any number of workers or processes, each sample is the same."""

import random
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import BatchSampler, DataLoader, Dataset

from inline.engine import exact_loops
from inline.engine.exact_loops import PlacedBatches, place_batches, random_state_kept, seed_all, seed_step
from inline.errors import UserError

SIZE, BATCH = 10, 3


class Augmented(Dataset):
    """Each sample is its index and what was drawn for it."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), float(np.random.rand()), torch.rand(()).item()


def make_loader(sampler: type, workers: int = 0) -> DataLoader:
    dataset = Augmented()
    return DataLoader(dataset, BATCH, sampler=sampler(dataset, seed=5), num_workers=workers, collate_fn=list)


def draw(sampler: type, skip: int, number: int, workers: int = 0, endless: bool = True) -> list[Any]:
    loader = make_loader(sampler, workers)
    batches = place_batches(loader, seed=1, endless=endless)
    assert batches is not None
    batches.begin(0, skip)
    return list(islice(loader, number))


@pytest.mark.parametrize('sampler', [DefaultSampler, InfiniteSampler])
@pytest.mark.parametrize('skip', [1, 3, 4, 9])
def test_begun_anywhere_the_data_is_what_an_uninterrupted_run_sees(sampler: type, skip: int) -> None:
    whole = draw(sampler, 0, 12)
    assert draw(sampler, skip, 12 - skip) == whole[skip:]
    # In each pass every image comes, in another order and with other random numbers.
    samples = [sample for batch in whole for sample in batch]
    passes = samples[:SIZE], samples[SIZE : 2 * SIZE]
    assert [sorted(sample[0] for sample in one) for one in passes] == [list(range(SIZE))] * 2
    assert [sample[0] for sample in passes[0]] != [sample[0] for sample in passes[1]]
    assert len({number for sample in samples for number in sample[1:]}) == 3 * len(samples)


def test_the_number_of_workers_does_not_matter() -> None:
    assert draw(InfiniteSampler, 2, 5, workers=2) == draw(InfiniteSampler, 2, 5)


def test_the_order_is_mmengines() -> None:
    own = [[sample[0] for sample in batch] for batch in draw(InfiniteSampler, 0, 6)]
    plain = islice(make_loader(InfiniteSampler), 6)
    assert own == [[sample[0] for sample in batch] for batch in plain]


def test_two_processes_see_what_one_would_with_the_same_total_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank_of(rank: int, world: int, size: int) -> list[list[tuple[int, int]]]:
        monkeypatch.setattr(exact_loops, 'get_dist_info', lambda: (rank, world))
        monkeypatch.setattr('mmengine.dataset.sampler.get_dist_info', lambda: (rank, world))
        sampler = BatchSampler(InfiniteSampler(Augmented(), seed=5), size, drop_last=False)
        batches = islice(PlacedBatches(sampler, 1, endless=True), 4)
        return [list(zip(batch.indices, batch.places, strict=True)) for batch in batches]

    one = rank_of(0, 1, 4)
    two = [rank_of(rank, 2, 2) for rank in (0, 1)]
    for step in range(4):
        assert sorted(one[step]) == sorted(two[0][step] + two[1][step])


def test_without_workers_the_random_numbers_of_the_step_are_left_alone() -> None:
    seed_step(3, 8)
    expected = random.random(), np.random.rand(), torch.rand(())
    seed_step(3, 8)
    draw(InfiniteSampler, 0, 1)
    with random_state_kept():
        seed_all(1)
    # The loader itself draws one seed for its workers from torch.
    assert (random.random(), np.random.rand()) == expected[:2]
    seed_step(3, 9)
    assert torch.rand(()) != expected[2]


def test_data_without_a_whole_batch_is_refused() -> None:
    dataset = Augmented()
    sampler = BatchSampler(DefaultSampler(dataset, seed=5), SIZE + 1, drop_last=True)
    with pytest.raises(UserError, match='no whole batch'):
        next(iter(PlacedBatches(sampler, 1, endless=True)))


def test_one_pass_is_one_pass() -> None:
    assert len(draw(DefaultSampler, 0, 99, endless=False)) == 4
    assert len(draw(DefaultSampler, 3, 99, endless=False)) == 1
    assert draw(DefaultSampler, 4, 99, endless=False) == []
