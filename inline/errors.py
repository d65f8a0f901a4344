"""Mistakes of the user, told in one line instead of a traceback."""

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

# MMEngine puts one of these before the message for every module on the way to the one that failed.
_BUILD_PREFIX = re.compile(r'^(class `\w+` in [\w/.]+: )+')
# torch puts this before the message of what a process that loads data raised.
_WORKER_PREFIX = re.compile(r'^Caught \w+ in DataLoader worker process \d+\.\n.*\n[\w.]+: ', re.DOTALL)


class UserError(ValueError):
    """Something the user can put right: the message names the value and what is allowed."""


class BadDataError(UserError):
    """A mistake in the data that only the process that read it knows of."""


class UnreadableError(BadDataError):
    """A sample that cannot be used: left out and counted in training, refused in testing."""


class OneLineParser(argparse.ArgumentParser):
    """Reports a mistake on the command line as a :class:`UserError`, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn a :class:`UserError` into ``error: …`` on stderr and exit code 2; Ctrl-C into 130."""
    try:
        yield
    except BadDataError as error:
        print(f'error: {one_line(error)}', file=sys.stderr, flush=True)
        sys.exit(2)
    except UserError as error:
        _leave(f'error: {one_line(error)}', 2)
    except KeyboardInterrupt:
        _leave('interrupted', 130)


def one_line(error: UserError) -> str:
    """What was said, without what was put before it on its way through builders and processes."""
    return _BUILD_PREFIX.sub('', _WORKER_PREFIX.sub('', str(error))).strip()


def _leave(message: str, code: int) -> NoReturn:
    # With several processes each rank meets the same mistake; one line is enough.
    if os.environ.get('RANK', '0') == '0':
        print(message, file=sys.stderr, flush=True)
    sys.exit(code)
