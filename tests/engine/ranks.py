"""Real processes with gloo for tests: forked, because importing the toolboxes costs seconds a process."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from tests.conftest import free_port

Work = Callable[[], Any]


def run_ranks(count: int, work: Work, folder: Path) -> list[Any]:
    """What `work` returned on each rank of a process group; the first failure is raised with its traceback.

    A single rank is a process too, without a launcher: tests then compare like with like.
    """
    folder.mkdir(parents=True)
    multiprocessing.start_processes(
        _rank, (count, free_port(), work, folder), nprocs=count, start_method='fork'
    )
    return [torch.load(folder / f'{rank}.pt', weights_only=False) for rank in range(count)]


def launcher() -> str:
    """What a config's `launcher` has to be inside :func:`run_ranks`."""
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
