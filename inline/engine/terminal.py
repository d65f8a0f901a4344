"""What a run prints to the terminal: progress, metrics and warnings. The log file has everything.

MMEngine prints every record of the log: environment, config, hooks and tables, some hundred lines before the
first loss. Without ``--verbose``, :class:`TerminalFilter` passes only some of the records, and
:class:`~inline.engine.hooks.summary.SummaryHook` prints a summary of the run and the results.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.logging import MessageHub

import inline
from inline.openmmlab.backbones import LOAD_REPORTS
from inline.openmmlab.patches import configure_terminal_handlers

_PACKAGE = str(Path(inline.__file__).parent)
# Deprecation warnings inside MMEngine and the toolboxes, on which users cannot act.
_NOISE = (
    '"FileClient" will be deprecated',
    '"HardDiskBackend" is the alias',
    'The prefix is not set in metric',
)
# Key of the message hub with the last and the best value of the metric; empty before the first validation.
METRIC_INFO = 'metric_summary'
# Attribute of records that the terminal does not show, because they are printed elsewhere.
FILE_ONLY = {'file_only': True}


@contextmanager
def terminal_log(verbose: bool, with_tables: bool = False) -> Iterator[None]:
    """Let runners created in this context print a short log, or MMEngine's log with `verbose`.

    Args:
        verbose: Whether to print everything.
        with_tables: Whether to print the tables of metrics, such as the IoU of every class.
    """

    def configure(handler: logging.Handler) -> None:
        handler.addFilter(TerminalFilter(with_tables))
        handler.setFormatter(TerminalFormatter())

    if verbose:
        yield
        return
    with configure_terminal_handlers(configure):
        yield


class TerminalFilter(logging.Filter):
    """Passes progress, metrics, new best checkpoints, warnings, and messages of this package."""

    def __init__(self, with_tables: bool = False) -> None:
        super().__init__()
        self.with_tables = with_tables

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, 'file_only', False):
            return False
        message = record.getMessage()
        if record.levelno >= logging.WARNING:
            reports = MessageHub.get_current_instance().runtime_info.get(LOAD_REPORTS, ())
            # The summary before the first step has the reports of loaded weights.
            return not (message.startswith(_NOISE) or message in reports)
        if record.module == 'logger_hook':
            return message.startswith(('Iter(', 'Epoch('))
        if message.startswith('The best checkpoint'):
            return True
        is_table = record.module.endswith('metric') or record.funcName == 'print_log'
        return record.pathname.startswith(_PACKAGE) or (self.with_tables and is_table)


class TerminalFormatter(logging.Formatter):
    """Time and message, for training steps with the last and the best value of the metric."""

    def __init__(self) -> None:
        super().__init__('%(asctime)s %(message)s', '%H:%M:%S')

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name in logging)
        line = super().formatMessage(record)
        if record.levelno >= logging.WARNING:
            return f'{record.levelname.lower()}: {line}'
        if record.module == 'logger_hook' and '(train)' in line:
            metric = MessageHub.get_current_instance().runtime_info.get(METRIC_INFO)
            return f'{line}  {metric}' if metric else line
        return line
