"""Checkpoints that run code when they are unpickled as a whole."""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mmengine.logging.history_buffer import HistoryBuffer


class Run:
    """Unpickled, it runs a command that leaves a file behind."""

    def __init__(self, trace: Path, how: Callable[..., Any] = os.system) -> None:
        self.trace, self.how = trace, how

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if self.how is os.system:
            return os.system, (f'touch "{self.trace}"',)
        return self.how, (f'open({str(self.trace)!r}, "w").close()',)


class ByGetattr:
    """Reaches for more of a history than its statistics, by the getattr that names those."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return getattr, (HistoryBuffer, '__subclasses__')


def legacy(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def zipped(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def bare(content: Any) -> bytes:
    return pickle.dumps(content)


WEIGHT = {'backbone.x': torch.zeros(1)}
FILES: dict[str, Callable[[Path], bytes]] = {
    'zip, top': lambda trace: zipped(Run(trace)),
    'zip, among the weights': lambda trace: zipped({'state_dict': {**WEIGHT, 'y': Run(trace)}}),
    'zip, beside the weights': lambda trace: zipped({'state_dict': WEIGHT, 'meta': Run(trace)}),
    'zip, nested': lambda trace: zipped({'state_dict': WEIGHT, 'meta': {'a': [(1, {'b': Run(trace)})]}}),
    'zip, optimizer': lambda trace: zipped({'state_dict': WEIGHT, 'optimizer': {'state': {0: Run(trace)}}}),
    'zip, moving average': lambda trace: zipped({'state_dict': WEIGHT, 'ema_state_dict': Run(trace)}),
    'zip, schedulers': lambda trace: zipped({'state_dict': WEIGHT, 'param_schedulers': [Run(trace)]}),
    'zip, message hub': lambda trace: zipped({'state_dict': WEIGHT, 'message_hub': {'x': Run(trace)}}),
    'zip, eval': lambda trace: zipped({'state_dict': WEIGHT, 'meta': Run(trace, eval)}),
    'zip, exec': lambda trace: zipped({'state_dict': WEIGHT, 'meta': Run(trace, exec)}),
    'zip, getattr': lambda _: zipped({'state_dict': WEIGHT, 'meta': ByGetattr()}),
    'legacy, top': lambda trace: legacy(Run(trace)),
    'legacy, beside the weights': lambda trace: legacy({'state_dict': WEIGHT, 'meta': Run(trace)}),
    'bare pickle': lambda trace: bare(Run(trace)),
}
