"""A full disk: curves and log lines go missing with one warning, other files stop the run with a line.

Checkpoints have their own way: see :mod:`inline.engine.checkpoints`.
"""

import errno
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmengine.logging import print_log
from mmengine.visualization import Visualizer

from inline.errors import UserError

# No space, a used-up quota, a limit on the size of files.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WRITES = ('add_config', 'add_graph', 'add_image', 'add_scalar', 'add_scalars', 'close')


class FullDisk:
    """What becomes of the files of one work directory without room for them."""

    def __init__(self, work_dir: str) -> None:
        self.work_dir = work_dir
        self._told = False

    def spare(self, visualizer: Visualizer) -> None:
        """Let a run go on without what its visualizer can no longer write."""
        for backend in visualizer._vis_backends.values():
            for name in _WRITES:
                setattr(backend, name, self._spared(getattr(backend, name)))

    def is_met_by(self, error: BaseException | None) -> bool:
        """Whether this is the error of a full disk; the first one is told."""
        if not isinstance(error, OSError) or error.errno not in _FULL:
            return False
        if not self._told:
            # Before the warning, which goes to a file as well.
            self._told = True
            print_log(
                f'no room for log files and curves in {self.work_dir}: {error.strerror}; training goes on '
                'without them',
                logger='current',
                level=logging.WARNING,
            )
        return True

    def stopping(self, error: OSError) -> UserError:
        """What to tell where a run cannot go on without a file."""
        last = Path(self.work_dir, 'last_checkpoint')
        known = f'the last checkpoint is {last.read_text()}' if last.is_file() else 'no checkpoint was saved'
        return UserError(
            f'no room for {error.filename or "a file"} in {self.work_dir}: {error.strerror}; {known}; '
            'make room there and go on with --resume'
        )

    def _spared(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def write_or_go_on(*args: Any, **options: Any) -> Any:
            try:
                return write(*args, **options)
            except OSError as error:
                if not self.is_met_by(error):
                    raise

        return write_or_go_on


@contextmanager
def watch_for_full_disk(work_dir: str) -> Iterator[FullDisk]:
    """Tell a full disk in a line: in log handlers, in threads that write curves, where it stops the run."""
    disk = FullDisk(work_dir)
    tell_failed_line, tell_failed_thread = logging.FileHandler.handleError, threading.excepthook

    def without_line(handler: logging.FileHandler, record: logging.LogRecord) -> None:
        if not disk.is_met_by(sys.exception()):
            tell_failed_line(handler, record)

    def without_thread(failure: threading.ExceptHookArgs) -> None:
        if not disk.is_met_by(failure.exc_value):
            tell_failed_thread(failure)

    logging.FileHandler.handleError = without_line  # type: ignore[method-assign,assignment]
    threading.excepthook = without_thread
    try:
        yield disk
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise disk.stopping(error) from error
    finally:
        logging.FileHandler.handleError = tell_failed_line  # type: ignore[method-assign]
        threading.excepthook = tell_failed_thread
