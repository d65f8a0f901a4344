"""What the processes of a test found: gathered by messages, written by the first of them.

MMEngine lets every process write its results into a folder of the current directory, which must then be
shared between machines and open for writing, and leaves the folder behind. The figures of the whole test all
processes then write into one and the same file.
"""

from collections.abc import Callable
from functools import cache
from itertools import chain, zip_longest
from typing import Any

import torch.distributed as dist
from mmengine.dist import dist as mmengine_dist
from mmengine.dist import master_only
from mmengine.hooks import LoggerHook

_by_files: Callable[..., list[Any] | None] = mmengine_dist.collect_results_cpu
_write_figures: Callable[..., None] = LoggerHook.after_test_epoch
_NOTHING = object()


def install() -> None:
    """Let the metrics of all toolboxes gather by :func:`gather`, and the first process write the figures."""
    mmengine_dist.collect_results_cpu = gather
    LoggerHook.after_test_epoch = master_only(_write_figures)


def gather(result_part: list[Any], size: int, tmpdir: str | None = None) -> list[Any] | None:
    """The results for all `size` images in the order of the data set, on the first process; None elsewhere.

    The images were dealt out in turn. Where they did not come out even, some were given out twice so that
    all processes have as many: those stand at the end and are dropped. The signature is MMEngine's; a
    metric that names a folder gathers by files in it.
    """
    if tmpdir is not None:
        return _by_files(result_part, size, tmpdir)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return result_part[:size]
    parts: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(result_part, parts, group=_group())
    if parts is None:
        return None
    in_turn = chain.from_iterable(zip_longest(*parts, fillvalue=_NOTHING))
    return [result for result in in_turn if result is not _NOTHING][:size]


@cache
def _group() -> dist.ProcessGroup | None:
    """Processes that talk through main memory: results need not fit into a GPU's."""
    return None if dist.get_backend() == 'gloo' else dist.new_group(backend='gloo')
