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


class UserError(ValueError):
    """Something the user can put right: the message names the value and what is allowed."""


class OneLineParser(argparse.ArgumentParser):
    """Reports a mistake on the command line as a :class:`UserError`, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn a :class:`UserError` into ``error: …`` on stderr and exit code 2; Ctrl-C into 130."""
    try:
        yield
    except UserError as error:
        _leave(f'error: {_BUILD_PREFIX.sub("", str(error))}', 2)
    except KeyboardInterrupt:
        _leave('interrupted', 130)


def _leave(message: str, code: int) -> NoReturn:
    # With several processes each rank meets the same mistake; one line is enough.
    if os.environ.get('RANK', '0') == '0':
        print(message, file=sys.stderr, flush=True)
    sys.exit(code)
