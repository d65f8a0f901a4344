"""Gloo process groups for tests, of forked processes: importing the toolboxes takes seconds."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from tests.conftest import free_port

Work = Callable[[], Any]


def run_ranks(count: int, work: Work, folder: Path) -> list[Any]:
    """Run `work` on each rank of a process group and return the results; raise the first failure.

    A single rank also runs in a forked process, without a launcher, so that results are comparable.
    """
    folder.mkdir(parents=True)
    multiprocessing.start_processes(
        _rank, (count, free_port(), work, folder), nprocs=count, start_method='fork'
    )
    return [torch.load(folder / f'{rank}.pt', weights_only=False) for rank in range(count)]


def launcher() -> str:
    """Return the `launcher` of a config inside :func:`run_ranks`."""
    return 'none' if world_size() == 1 else 'pytorch'


def world_size() -> int:
    return int(os.environ.get('WORLD_SIZE', '1'))


def _rank(rank: int, count: int, port: int, work: Work, folder: Path) -> None:
    if count > 1:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(count),
            MASTER_ADDR='127.0.0.1',
            MASTER_PORT=str(port),
        )
    torch.save(work(), folder / f'{rank}.pt')
