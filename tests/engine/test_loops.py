"""Data and random numbers by position: the same from any start, with any number of workers or processes."""

import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset

from inline.engine import loops
from inline.engine.distributed.setup import start_gloo
from inline.engine.loops import (
    SeededBatchSampler,
    preserve_random_state,
    seed_all,
    seed_step,
    use_seeded_batches,
)
from inline.utils.errors import UserError
from tests.engine.distributed.ranks import run_ranks

SIZE, BATCH = 10, 3


class Augmented(Dataset):
    """Each sample is its index and the random numbers that were drawn for it."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), float(np.random.rand()), torch.rand(()).item()


def make_loader(sampler: type, workers: int = 0) -> DataLoader:
    dataset = Augmented()
    return DataLoader(dataset, BATCH, sampler=sampler(dataset, seed=5), num_workers=workers, collate_fn=list)


def draw(sampler: type, skip: int, number: int, workers: int = 0, infinite: bool = True) -> list[Any]:
    loader = make_loader(sampler, workers)
    batch_sampler = use_seeded_batches(loader, seed=1, infinite=infinite)
    assert batch_sampler is not None
    batch_sampler.start_at(0, skip)
    return list(islice(loader, number))


@pytest.mark.parametrize('sampler', [DefaultSampler, InfiniteSampler])
@pytest.mark.parametrize('skip', [1, 3, 4, 9])
def test_data_from_any_start_equals_that_of_an_uninterrupted_run(sampler: type, skip: int) -> None:
    uninterrupted = draw(sampler, 0, 12)
    assert draw(sampler, skip, 12 - skip) == uninterrupted[skip:]
    # Each pass has every image, in a different order and with different random numbers.
    samples = [sample for batch in uninterrupted for sample in batch]
    passes = samples[:SIZE], samples[SIZE : 2 * SIZE]
    assert [sorted(sample[0] for sample in one) for one in passes] == [list(range(SIZE))] * 2
    assert [sample[0] for sample in passes[0]] != [sample[0] for sample in passes[1]]
    assert len({number for sample in samples for number in sample[1:]}) == 3 * len(samples)


def test_number_of_workers_does_not_matter() -> None:
    assert draw(InfiniteSampler, 2, 5, workers=2) == draw(InfiniteSampler, 2, 5)


def test_order_is_that_of_mmengine() -> None:
    own = [[sample[0] for sample in batch] for batch in draw(InfiniteSampler, 0, 6)]
    plain = islice(make_loader(InfiniteSampler), 6)
    assert own == [[sample[0] for sample in batch] for batch in plain]


def test_two_ranks_load_what_one_loads_with_the_same_total_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def batches_of(rank: int, world: int, size: int) -> list[list[tuple[int, int]]]:
        monkeypatch.setattr(loops, 'get_dist_info', lambda: (rank, world))
        monkeypatch.setattr('mmengine.dataset.sampler.get_dist_info', lambda: (rank, world))
        sampler = BatchSampler(InfiniteSampler(Augmented(), seed=5), size, drop_last=False)
        batches = islice(SeededBatchSampler(sampler, 1, infinite=True), 4)
        return [list(zip(batch.indices, batch.positions, strict=True)) for batch in batches]

    one = batches_of(0, 1, 4)
    two = [batches_of(rank, 2, 2) for rank in (0, 1)]
    for step in range(4):
        assert sorted(one[step]) == sorted(two[0][step] + two[1][step])


def draw_step(seed: int, step: int, rank: int) -> tuple[float, float, float]:
    seed_step(seed, step, rank)
    return random.random(), float(np.random.rand()), torch.rand(()).item()


def test_random_numbers_of_a_step_differ_by_rank_and_step_and_can_be_repeated() -> None:
    """Dropout, stochastic depth and Mixup draw from these generators."""
    drawn = [draw_step(3, step, rank) for step in range(3) for rank in range(4)]
    for generator in range(3):
        assert len({numbers[generator] for numbers in drawn}) == 12
    assert drawn == [draw_step(3, step, rank) for step in range(3) for rank in range(4)]


def test_rank_zero_draws_what_the_previous_version_drew() -> None:
    """Version 0.1.0 seeded by seed and step alone: its runs on one process resume exactly."""
    drawn = draw_step(3, 8, 0)
    torch.manual_seed(seed_all(3, 0, 8))
    assert drawn == (random.random(), float(np.random.rand()), torch.rand(()).item())


def test_loading_without_workers_does_not_change_the_random_state_of_the_step() -> None:
    expected = draw_step(3, 8, 0)
    seed_step(3, 8, 0)
    draw(InfiniteSampler, 0, 1)
    with preserve_random_state():
        seed_all(1)
    # The loader itself draws a seed for its workers from torch.
    assert (random.random(), np.random.rand()) == expected[:2]


class Drawing(BaseModel):
    """Draws one random number per training step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.drawn: list[float] = []

    def forward(self, x: torch.Tensor, mode: str = 'loss') -> dict[str, torch.Tensor]:
        assert mode == 'loss'
        self.drawn.append(torch.rand(()).item())
        return {'loss': (self.weight * x).mean()}


def draw_in_training(work_dir: Path) -> list[float]:
    """Train three steps on this rank; return what the model drew."""
    start_gloo('pytorch')
    model = Drawing()
    runner = Runner(
        model=model,
        work_dir=str(work_dir),
        launcher='pytorch',
        cfg={'model_wrapper_cfg': {'type': 'MMDistributedDataParallel', 'device_ids': None}},
        train_dataloader={
            'dataset': Augmented(),
            'batch_size': 1,
            'num_workers': 0,
            'sampler': {'type': 'InfiniteSampler'},
            'collate_fn': lambda batch: {'x': torch.ones(len(batch))},
        },
        train_cfg={'type': 'inline.ResumableIterTrainLoop', 'max_iters': 3},
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 0.1}},
        randomness={'seed': 0},
        default_hooks={'checkpoint': None, 'logger': None},
        log_level='ERROR',
    )
    runner.train()
    return model.drawn


def test_ranks_draw_different_numbers_in_training(tmp_path: Path) -> None:
    drawn = run_ranks(2, lambda: draw_in_training(tmp_path / 'work'), tmp_path / 'ranks')
    assert len({number for numbers in drawn for number in numbers}) == 6


def test_data_without_a_complete_batch_is_an_error() -> None:
    dataset = Augmented()
    sampler = BatchSampler(DefaultSampler(dataset, seed=5), SIZE + 1, drop_last=True)
    with pytest.raises(UserError, match='no complete batch'):
        next(iter(SeededBatchSampler(sampler, 1, infinite=True)))


def test_a_finite_sampler_ends_after_one_pass() -> None:
    assert len(draw(DefaultSampler, 0, 99, infinite=False)) == 4
    assert len(draw(DefaultSampler, 3, 99, infinite=False)) == 1
    assert draw(DefaultSampler, 4, 99, infinite=False) == []
