"""Distributed runs: process group, running without GPUs, results and errors shared by all ranks."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from itertools import chain, zip_longest
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from mmengine.config import Config, ConfigDict
from mmengine.dist import all_gather_object, barrier, get_rank, init_dist

from inline.engine.distributed.slurm import torchrun_environment
from inline.openmmlab.patches import collect_results_in_memory
from inline.utils.errors import UserError
from inline.utils.nested import walk_dicts

# Timeout of work on rank 0. NCCL's ten minutes are too short for checking a large dataset on a network drive.
_TIMEOUT = timedelta(hours=6)

Result = TypeVar('Result')


def adapt_to_hardware(cfg: Config) -> None:
    """Adapt a config to the launcher and to a machine without GPUs, where it starts gloo."""
    if cfg.launcher != 'none':
        collect_results_in_memory(gather_results)
        # BatchNorm statistics differ between ranks and only those of rank 0 are saved. With the hook,
        # testing the saved checkpoint gives the result of the validation.
        hooks = cfg.get('custom_hooks') or []
        if 'SyncBuffersHook' not in [hook.get('type') for hook in hooks]:
            cfg.custom_hooks = [*hooks, ConfigDict(type='SyncBuffersHook')]
    if torch.cuda.is_available():
        return
    for _, node in walk_dicts(cfg._cfg_dict):
        # Synchronized statistics exist on GPUs only.
        if node.get('type') in ('SyncBN', 'MMSyncBN', 'SyncBatchNorm'):
            node['type'] = 'BN'
    if cfg.launcher != 'none':
        join_process_group(cfg)
        # DistributedDataParallel would look for a GPU with the number LOCAL_RANK.
        wrapper = cfg.get('model_wrapper_cfg') or ConfigDict(type='MMDistributedDataParallel')
        cfg.model_wrapper_cfg = ConfigDict(wrapper, device_ids=None)


def join_process_group(cfg: Config) -> None:
    """Initialize the process group of a distributed run, unless it already exists."""
    launcher = cfg.get('launcher') or 'none'
    if launcher == 'none' or dist.is_initialized():
        return
    if launcher == 'slurm':
        # MMEngine would use the first host of the job, which this step may not run on, and one fixed port.
        os.environ.update(torchrun_environment(os.environ))
    if torch.cuda.is_available():
        init_dist(launcher, **(cfg.get('env_cfg') or {}).get('dist_cfg', {}))
    else:
        start_gloo(launcher)


def leave_process_group() -> None:
    """Wait for all ranks at the end of a run, then close the process group.

    Otherwise rank 0, which hosts the store of the group, may exit while another rank still needs it, and the
    interpreter shuts down while threads of the group are running.
    """
    if dist.is_initialized():
        barrier()
        dist.destroy_process_group()


def start_gloo(launcher: str) -> None:
    """Join the gloo process group that the environment variables of torchrun describe.

    MMEngine's own set-up calls ``torch.cuda.set_device`` with any backend.
    """
    if launcher not in ('pytorch', 'slurm'):
        raise UserError(f'--launcher {launcher} needs a GPU: without one, use none, pytorch or slurm')
    for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'):
        if name not in os.environ:
            raise UserError(
                f'--launcher {launcher} but {name} is not set: start with tools/dist_train.sh or torchrun'
            )
    dist.init_process_group('gloo')


def call_on_rank_zero(function: Callable[[], Result], cfg: Config) -> Result:
    """Call a function on rank 0 and return its result on all ranks; if it raises, raise on all ranks.

    Args:
        function: Its result must be picklable.
        cfg: Config of the run, which gives the launcher.
    """
    join_process_group(cfg)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return function()
    # With gloo, because a broadcast that waits longer than NCCL's timeout aborts the run.
    group = dist.new_group(backend='gloo', timeout=_TIMEOUT)
    result: list[Any] = [None]
    with raise_on_all_ranks(group):
        if dist.get_rank() == 0:
            result = [function()]
    dist.broadcast_object_list(result, src=0, group=group)
    dist.destroy_process_group(group)
    return result[0]


@contextmanager
def raise_on_all_ranks(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Run a block on all ranks; if it fails on any of them, raise on all.

    Otherwise the other ranks would wait for the failed one in the next collective. The failed rank raises
    its own error, the others a :class:`UserError` with the same message. The block must not contain a
    collective that a failure could skip.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    message = None
    if error is not None:
        message = str(error) if isinstance(error, UserError) else f'{type(error).__name__}: {error}'
        if get_rank() > 0 or not isinstance(error, UserError):
            message = f'rank {get_rank()}: {message}'
    messages = all_gather_object(message, group)
    if error is not None:
        raise error
    for text in messages:
        if text is not None:
            raise UserError(text)


def gather_results(results: list[Any], size: int) -> list[Any] | None:
    """Gather the results of all ranks on rank 0, in the order of the dataset; return None on other ranks.

    Samples are distributed round-robin. A sampler that pads the shards to the same length repeats samples
    at the end; these are dropped.

    Args:
        results: Results of this rank.
        size: Number of samples in the dataset.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return results[:size]
    shards: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(results, shards, group=_cpu_group())
    if shards is None:
        return None
    padding = object()
    in_order = chain.from_iterable(zip_longest(*shards, fillvalue=padding))
    return [result for result in in_order if result is not padding][:size]


@cache
def _cpu_group() -> Any:
    """Return a gloo group: results then need no GPU memory."""
    return None if dist.get_backend() == 'gloo' else dist.new_group(backend='gloo')
