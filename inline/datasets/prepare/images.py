"""Looking into every image of a folder or zip with several processes."""

import io
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image, UnidentifiedImageError
from tqdm import tqdm

from inline.datasets.prepare.report import Fault
from inline.datasets.zip_archive import ZipArchive
from inline.errors import UserError

UNDECODABLE = 'images that cannot be decoded'
_CHUNK = 32

Inspect = Callable[[str], Fault | None]


class Files(Protocol):
    def read(self, name: str) -> bytes: ...


@dataclass(frozen=True)
class FolderFiles:
    path: Path

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


@dataclass(frozen=True)
class ZipFiles:
    """Members of a zip, named from a folder inside it, which is '' or ends with a slash."""

    archive: ZipArchive
    folder: str

    def read(self, name: str) -> bytes:
        return self.archive.read(self.folder + name)


@dataclass(frozen=True)
class Decoding:
    """How images are looked into.

    Attributes:
        workers: Number of processes.
        limit: How many images of a folder, evenly spread over it; None for all of them.
    """

    workers: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f'--workers {self.workers}: must be 1 or more')

    def choose(self, names: Sequence[str]) -> Sequence[str]:
        if self.limit is None or len(names) <= self.limit:
            return names
        return [names[i * len(names) // self.limit] for i in range(self.limit)]


@dataclass(frozen=True)
class DecodeImage:
    """Reads every byte of an image: a truncated file is found too, which OpenCV would fill with grey."""

    files: Files

    def __call__(self, name: str) -> Fault | None:
        try:
            with open_image(self.files.read(name)) as image:
                # All of a JPEG is still read, but most of the arithmetic on its pixels is saved.
                image.draft(None, (1, 1))
                image.load()
        except Exception as error:  # A damaged file can make a decoder raise anything.
            return Fault(UNDECODABLE, name, reason(error))
        return None


def open_image(content: bytes) -> Image.Image:
    """The image in a file's bytes, of which only the header is read so far."""
    with warnings.catch_warnings():
        # Odd metadata does not matter: only pixels are trained on.
        warnings.simplefilter('ignore')
        return Image.open(io.BytesIO(content))


def reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return 'not an image'
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0]


def inspect_all(inspect: Inspect, names: Sequence[str], decoding: Decoding, what: str) -> list[Fault]:
    """Call `inspect` on the names that `decoding` chooses, with a progress bar, and gather the faults."""
    names = decoding.choose(names)
    if not names:
        return []
    chunks = [names[i : i + _CHUNK] for i in range(0, len(names), _CHUNK)]
    found: list[Fault] = []
    with tqdm(total=len(names), desc=f'decoding {what}', unit='image', leave=False) as bar:
        for count, faults in _run(inspect, chunks, min(decoding.workers, len(chunks))):
            bar.update(count)
            found += faults
    return found


def count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


_Result = tuple[int, list[Fault]]


def _run(inspect: Inspect, chunks: list[Sequence[str]], workers: int) -> Iterator[_Result]:
    if workers <= 1:
        yield from (_inspect_chunk(inspect, chunk) for chunk in chunks)
        return
    # A pool of this kind notices when a process dies, instead of waiting for its result for ever.
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context('fork'), initializer=_start_worker, initargs=(inspect,)
    )
    try:
        yield from pool.map(_work, chunks)
    except BrokenProcessPool as error:
        raise UserError('a worker process died, perhaps for lack of memory: try fewer --workers') from error
    finally:
        # Also after Ctrl-C: each process ends its present chunk, and no other is begun.
        pool.shutdown(cancel_futures=True)


_inspect: Inspect | None = None


def _start_worker(inspect: Inspect) -> None:
    # The terminal sends Ctrl-C to all processes; the main one answers for all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    global _inspect
    _inspect = inspect


def _work(chunk: Iterable[str]) -> _Result:
    assert _inspect is not None
    return _inspect_chunk(_inspect, chunk)


def _inspect_chunk(inspect: Inspect, chunk: Iterable[str]) -> _Result:
    results = [inspect(name) for name in chunk]
    return len(results), [fault for fault in results if fault is not None]
