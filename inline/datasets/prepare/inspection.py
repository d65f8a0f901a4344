"""Reports on the files of a dataset, and inspection of images by several processes."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from inline.datasets.image_file import failure_reason, open_image, read_file
from inline.datasets.zip_archive import ZipArchive
from inline.utils.arguments import check_positive
from inline.utils.errors import UserError

UNDECODABLE = 'images that cannot be decoded'
_MAX_NAMES = 3
_CHUNK = 32


class FileProblem(NamedTuple):
    """A problem of one file; problems of one kind are reported in one line."""

    kind: str
    name: str
    detail: str = ''


ReadFile = Callable[[str], bytes]
Inspect = Callable[[str], FileProblem | None]


@dataclass
class PathReport:
    """The findings about one folder or file of a dataset.

    Attributes:
        name: Path relative to the dataset.
        source: Where to download it, shown if there is a problem.
        found: Short description of the content.
        problems: One line per kind of problem.
    """

    name: str
    source: str
    found: str = 'missing'
    problems: list[str] = field(default_factory=list)

    def add(self, kind: str, names: Iterable[str]) -> None:
        """Report the number of `names` and the first few, if there are any."""
        names = sorted(names)
        if names:
            more = ', …' if len(names) > _MAX_NAMES else ''
            self.problems.append(f'{kind}: {len(names):,} ({", ".join(names[:_MAX_NAMES])}{more})')

    def add_file_problems(self, problems: Iterable[FileProblem]) -> None:
        by_kind: dict[str, list[str]] = {}
        for kind, name, detail in problems:
            by_kind.setdefault(kind, []).append(f'{name}: {detail}' if detail else name)
        for kind, names in by_kind.items():
            self.add(kind, names)

    def expect(self, what: str, count: int, expected: int) -> None:
        if count != expected:
            self.problems.append(f'{what}: {count:,}, expected {expected:,}')


def format_reports(title: str, root: Path, reports: list[PathReport]) -> str:
    """Return one line per report, followed by its problems and its source."""
    lines = [f'{title} in {root}']
    for report in reports:
        lines.append(f'  {"BAD" if report.problems else "ok "}  {report.name}: {report.found}')
        lines += [f'         {problem}' for problem in report.problems]
        if report.problems:
            lines.append(f'         from {report.source}')
    return '\n'.join(lines)


def list_folder(
    root: Path, name: str, suffix: str, what: str, expected: int, source: str
) -> tuple[PathReport, list[str]]:
    """List the files of a folder that end with `suffix`, and report if their number is not `expected`."""
    report, folder = PathReport(name, source), root / name
    if not folder.is_dir():
        report.problems.append(f'the folder is missing, expected {expected:,} {what}')
        return report, []
    names = sorted(path.name for path in folder.iterdir() if path.suffix == suffix)
    report.found = f'{len(names):,} {what}'
    report.expect(what, len(names), expected)
    return report, names


def folder_reader(folder: Path) -> ReadFile:
    """Return a function that reads a file of a folder."""
    return lambda name: read_file(folder / name)


def zip_reader(archive: ZipArchive, folder: str) -> ReadFile:
    """Return a function that reads a member below `folder` of a zip, which is '' or ends with a slash."""
    return lambda name: archive.read(folder + name)


def image_decoder(read: ReadFile) -> Inspect:
    """Return a function that decodes an image. It also finds truncated files, which OpenCV pads with gray."""

    def inspect(name: str) -> FileProblem | None:
        try:
            with open_image(read(name)) as image:
                # Reads the complete JPEG but skips most of the computation.
                image.draft(None, (1, 1))
                image.load()
        except Exception as error:  # Decoders may raise any exception for damaged files.
            return FileProblem(UNDECODABLE, name, failure_reason(error))
        return None

    return inspect


@dataclass(frozen=True)
class Decoding:
    """How images are inspected.

    Attributes:
        workers: Number of processes.
        limit: Number of images per folder, evenly spaced; None for all.
    """

    workers: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        check_positive('--workers', self.workers)

    def sample(self, names: Sequence[str]) -> Sequence[str]:
        if self.limit is None or len(names) <= self.limit:
            return names
        return [names[i * len(names) // self.limit] for i in range(self.limit)]


def inspect_all(inspect: Inspect, names: Sequence[str], decoding: Decoding, what: str) -> list[FileProblem]:
    """Call `inspect` for a sample of the names, with a progress bar, and return the problems."""
    names = decoding.sample(names)
    if not names:
        return []
    results = _map(inspect, names, decoding.workers)
    bar = tqdm(results, total=len(names), desc=f'decoding {what}', unit='image', leave=False)
    return [problem for problem in bar if problem is not None]


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def _map(inspect: Inspect, names: Sequence[str], workers: int) -> Iterator[FileProblem | None]:
    if workers == 1 or len(names) <= _CHUNK:
        yield from map(inspect, names)
        return
    # Unlike multiprocessing.Pool, this executor detects a worker that dies instead of waiting forever.
    # Forked workers get `inspect` without pickling.
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context('fork'), initializer=_start_worker, initargs=(inspect,)
    )
    try:
        yield from pool.map(_inspect_in_worker, names, chunksize=_CHUNK)
    except BrokenProcessPool as error:
        raise UserError(
            'a worker process died, possibly because it ran out of memory: try fewer --workers'
        ) from error
    finally:
        # Also after Ctrl-C: every worker finishes its current chunk.
        pool.shutdown(cancel_futures=True)


_inspect: Inspect | None = None


def _start_worker(inspect: Inspect) -> None:
    # The terminal sends Ctrl-C to all processes; only the main process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    global _inspect
    _inspect = inspect


def _inspect_in_worker(name: str) -> FileProblem | None:
    assert _inspect is not None
    return _inspect(name)
