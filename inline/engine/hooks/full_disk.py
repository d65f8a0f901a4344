"""Full disk: a run continues without logs and curves, and stops with one line if it needs the file.

:mod:`inline.engine.hooks.checkpoint` handles checkpoints that cannot be written.
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

from inline.utils.errors import UserError

# No space left, quota exceeded, file size limit exceeded.
FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WRITE_METHODS = ('add_config', 'add_graph', 'add_image', 'add_scalar', 'add_scalars', 'close')


class FullDisk:
    """Errors of a full disk in one work directory."""

    def __init__(self, work_dir: str) -> None:
        self.work_dir = work_dir
        self._warned = False

    def protect(self, visualizer: Visualizer) -> None:
        """Let training continue when a backend of the visualizer cannot write."""
        for backend in visualizer._vis_backends.values():
            for name in _WRITE_METHODS:
                setattr(backend, name, self._protected(getattr(backend, name)))

    def handle(self, error: BaseException | None) -> bool:
        """Return whether the error comes from a full disk; log a warning the first time."""
        if not isinstance(error, OSError) or error.errno not in FULL_DISK_ERRORS:
            return False
        if not self._warned:
            # Set it first: the warning is written to a log file, too.
            self._warned = True
            print_log(
                f'disk full, no logs and curves are written to {self.work_dir}: {error.strerror}; '
                'training continues',
                logger='current',
                level=logging.WARNING,
            )
        return True

    def _protected(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def write_if_possible(*args: Any, **options: Any) -> Any:
            try:
                return write(*args, **options)
            except OSError as error:
                if not self.handle(error):
                    raise

        return write_if_possible


@contextmanager
def handle_full_disk(work_dir: str) -> Iterator[FullDisk]:
    """Handle a full disk in log handlers and writer threads, and raise a UserError where it stops the run."""
    disk = FullDisk(work_dir)
    handle_log_error, handle_thread_error = logging.FileHandler.handleError, threading.excepthook

    def skip_line(handler: logging.FileHandler, record: logging.LogRecord) -> None:
        if not disk.handle(sys.exception()):
            handle_log_error(handler, record)

    def skip_curve(failure: threading.ExceptHookArgs) -> None:
        if not disk.handle(failure.exc_value):
            handle_thread_error(failure)

    logging.FileHandler.handleError = skip_line  # type: ignore[method-assign,assignment]
    threading.excepthook = skip_curve
    try:
        yield disk
    except OSError as error:
        if error.errno not in FULL_DISK_ERRORS:
            raise
        last = Path(work_dir, 'last_checkpoint')
        saved = f'the last checkpoint is {last.read_text()}' if last.is_file() else 'no checkpoint was saved'
        raise UserError(
            f'cannot write {error.filename or "a file"} in {work_dir}: {error.strerror}; {saved}; '
            'free some space and continue with --resume'
        ) from error
    finally:
        logging.FileHandler.handleError = handle_log_error  # type: ignore[method-assign]
        threading.excepthook = handle_thread_error
