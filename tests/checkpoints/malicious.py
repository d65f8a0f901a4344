"""Checkpoints that run code when they are unpickled without restriction."""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mmengine.logging.history_buffer import HistoryBuffer

from tests.checkpoints.pickle_writer import (
    POINTER_DTYPE,
    array,
    storage,
    tensor,
    write_pickle,
    write_zip,
)


class RunsCode:
    """An object that creates the file `trace` when it is unpickled."""

    def __init__(self, trace: Path, how: Callable[..., Any] = os.system) -> None:
        self.trace, self.how = trace, how

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if self.how is os.system:
            return os.system, (f'touch "{self.trace}"',)
        return self.how, (f'open({str(self.trace)!r}, "w").close()',)


class UsesGetattr:
    """An object that reads an attribute with the getattr that HistoryBuffer needs."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return getattr, (HistoryBuffer, '__subclasses__')


def legacy_bytes(content: Any) -> bytes:
    """Return what torch before 1.6 would have saved."""
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def zip_bytes(content: Any) -> bytes:
    """Return what ``torch.save`` writes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


WEIGHTS = {'backbone.x': torch.zeros(1)}
# An array whose bytes are pointers to objects: crashes instead of leaving a trace.
POINTERS = 'zip, array of pointers'
# From the path of a trace to the content of a file that would create it.
FILES: dict[str, Callable[[Path], bytes]] = {
    'zip, top': lambda trace: zip_bytes(RunsCode(trace)),
    'zip, in the weights': lambda trace: zip_bytes({'state_dict': {**WEIGHTS, 'y': RunsCode(trace)}}),
    'zip, meta': lambda trace: zip_bytes({'state_dict': WEIGHTS, 'meta': RunsCode(trace)}),
    'zip, nested': lambda trace: zip_bytes(
        {'state_dict': WEIGHTS, 'meta': {'a': [(1, {'b': RunsCode(trace)})]}}
    ),
    'zip, optimizer': lambda trace: zip_bytes(
        {'state_dict': WEIGHTS, 'optimizer': {'state': {0: RunsCode(trace)}}}
    ),
    'zip, EMA': lambda trace: zip_bytes({'state_dict': WEIGHTS, 'ema_state_dict': RunsCode(trace)}),
    'zip, schedulers': lambda trace: zip_bytes(
        {'state_dict': WEIGHTS, 'param_schedulers': [RunsCode(trace)]}
    ),
    'zip, message hub': lambda trace: zip_bytes(
        {'state_dict': WEIGHTS, 'message_hub': {'x': RunsCode(trace)}}
    ),
    'zip, eval': lambda trace: zip_bytes({'state_dict': WEIGHTS, 'meta': RunsCode(trace, eval)}),
    'zip, exec': lambda trace: zip_bytes({'state_dict': WEIGHTS, 'meta': RunsCode(trace, exec)}),
    'zip, getattr': lambda _: zip_bytes({'state_dict': WEIGHTS, 'meta': UsesGetattr()}),
    'legacy, top': lambda trace: legacy_bytes(RunsCode(trace)),
    'legacy, meta': lambda trace: legacy_bytes({'state_dict': WEIGHTS, 'meta': RunsCode(trace)}),
    'plain pickle': lambda trace: pickle.dumps(RunsCode(trace)),
    POINTERS: lambda _: write_zip(
        write_pickle(
            {
                'state_dict': {'backbone.x': tensor(storage(numel=1), size=(1,))},
                'message_hub': {'runtime_info': {'x': array(POINTER_DTYPE, (1,), b'A' * 8)}},
            }
        ),
        {'0': bytes(4)},
    ),
}
