"""Checkpoints hold data: nothing in one is executed, whichever way it is loaded.

MMEngine tries the safe way first and then unpickles the whole file, which runs whatever is in it; what it
fetches from an address it unpickles at once; and resuming it runs the text of a config that a file may
hold. :func:`install` takes these ways away.
"""

import hashlib
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from mmengine.logging.history_buffer import HistoryBuffer
from mmengine.runner import checkpoint as mmengine_checkpoint

from inline.engine import data_files
from inline.errors import UserError
from inline.safetensors_files import is_safetensors, read_safetensors
from inline.weights import numpy_data


class NotDataError(UserError):
    """A checkpoint holds more than data; `what` is the name of it."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


def _statistic(owner: Any, name: str) -> Any:
    """In place of getattr, by which a history names its statistics and by which all else could be reached."""
    if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
        raise pickle.UnpicklingError(f'GLOBAL getattr({owner!r}, {name!r}) is not a statistic of a history')
    return getattr(owner, name)


# What MMEngine keeps in a checkpoint besides tensors and plain containers: numbers of numpy, and the
# histories of what was logged.
_DATA: list[Any] = [
    *numpy_data(),
    HistoryBuffer,
    (_statistic, 'builtins.getattr'),
]
# Of this thread, and only as long as the user's word holds: see :func:`trusting`.
_trusted: ContextVar[bool] = ContextVar('trusted', default=False)


def load_safely(file: Any, map_location: Any = 'cpu', also: Sequence[Any] = ()) -> Any:
    """The content of a checkpoint, as a path or a file object; `also` are further types that are data."""
    with _told_in_one_line(file), torch.serialization.safe_globals([*_DATA, *also]):
        if is_safetensors(file):
            return read_safetensors(file, map_location)
        return torch.load(file, map_location=map_location, weights_only=True)


def load(file: Any, map_location: Any = 'cpu', weights_only: bool | None = None) -> Any:  # noqa: ARG001 (MMEngine's)
    """:func:`load_safely`, unless inside :func:`trusting`. The signature is MMEngine's.

    Without ``meta['config']``: Runner.resume runs that text as Python. No checkpoint of ours has it; the
    config that they keep, ``meta['cfg']``, is for people.
    """
    if _trusted.get():
        with _told_in_one_line(file):
            content = (
                read_safetensors(file, map_location)
                if is_safetensors(file)
                else torch.load(file, map_location=map_location, weights_only=False)
            )
    else:
        content = load_safely(file, map_location)
    if isinstance(content, dict) and 'meta' in content:
        meta = content['meta']
        content['meta'] = {k: v for k, v in meta.items() if k != 'config'} if isinstance(meta, dict) else {}
    return content


def fetch(url: str, model_dir: str | None = None, map_location: Any = 'cpu', progress: bool = True) -> Any:
    """Download a checkpoint unless it is there already, and :func:`load` it. The signature is MMEngine's."""
    # Many addresses end in the same name.
    name = f'{hashlib.sha256(url.encode()).hexdigest()[:12]}-{Path(urlparse(url).path).name}'
    target = Path(model_dir or Path(torch.hub.get_dir(), 'checkpoints'), name)
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(target), progress=progress)
        except OSError as error:
            raise UserError(f'cannot download {url}: {getattr(error, "reason", None) or error}') from error
    return load(str(target), map_location)


def install() -> None:
    """Let MMEngine load checkpoints by :func:`load` and :func:`fetch` only, and data files as data."""
    mmengine_checkpoint._safe_torch_load = load
    mmengine_checkpoint.load_url = fetch
    data_files.install()


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """Inside, with `trust`, :func:`load` loads files whole, code and all; what comes after is safe again."""
    before = _trusted.set(trust)
    try:
        yield
    finally:
        _trusted.reset(before)


@contextmanager
def _told_in_one_line(file: Any) -> Iterator[None]:
    name = repr(str(file)) if isinstance(file, str | Path) else 'that was fetched'
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        # Only opening names the file: a place that is not in it is sought where its end was cut off.
        reason = (error.strerror or error) if error.filename else 'it is damaged or no checkpoint'
        raise UserError(f'checkpoint {name} cannot be read: {reason}') from error
    except Exception as error:
        # Wrong bytes lead unpickling to errors of any kind.
        foreign = re.search(r'(?:GLOBAL|class|function) (\S+)', str(error))
        if foreign and isinstance(error, pickle.UnpicklingError):
            raise NotDataError(
                f'checkpoint {name} holds {foreign[1]}, which is not data, and was not loaded: if you trust '
                'where it comes from, --trust-checkpoint of tools/train.py, test.py, predict.py or export.py '
                'loads it and runs what is in it',
                foreign[1],
            ) from error
        raise UserError(f'checkpoint {name} cannot be read: it is damaged or no checkpoint') from error
