"""Mistakes of the user, told in one line instead of a traceback."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

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


class TooSmallError(UserError):
    """An image that is smaller than what the model takes."""


class OneLineParser(argparse.ArgumentParser):
    """Reports a mistake on the command line as a :class:`UserError`, without the usage.

    Flags are written in full: the beginning of one may be another that was meant.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if 'arguments are required' in message or 'unrecognized arguments' in message:
            # A flag that is misspelt is missing, too: what was written says more than what was not.
            known = self._flags()
            flags = (word.split('=')[0] for word in self._words if word.startswith('--'))
            for flag in flags:
                if flag not in known:
                    close = difflib.get_close_matches(flag, known, n=1)
                    hint = f', did you mean {close[0]}?' if close else ''
                    raise UserError(f'unrecognized argument {flag}{hint}')
        raise UserError(message)

    def _flags(self) -> list[str]:
        """All flags, those of commands within this one, too."""
        flags = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                flags += [
                    flag for parser in action.choices.values() for flag in parser._option_string_actions
                ]
        return flags


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
    except (KeyError, TypeError) as error:
        mistake = _mistake_in_config(error)
        if mistake is None:
            raise
        _leave(f'error: {mistake}', 2)
    except KeyboardInterrupt:
        _leave('interrupted', 130)


def one_line(error: UserError) -> str:
    """What was said, without what was put before it on its way through builders and processes."""
    return _BUILD_PREFIX.sub('', _WORKER_PREFIX.sub('', str(error))).strip()


def _mistake_in_config(error: Exception) -> str | None:
    """What the config has that the toolbox's module does not take; None if it is another kind of error.

    MMEngine builds each module by a call with the config's keys. That call fails with Python's own errors,
    here or where the module hands the keys on.
    """
    step = error.__traceback__
    frames = []
    while step is not None:
        frames.append(step.tb_frame)
        step = step.tb_next
    building = [frame for frame in frames if frame.f_code.co_name == 'build_from_cfg']
    if not building:
        return None
    known = building[-1].f_locals
    text = str(error.args[0]) if error.args else ''
    if isinstance(error, KeyError):
        is_type = frames[-1] is building[-1] and 'is not in the' in text
        return f'unknown type {text.split(". ")[0]}' if is_type else None
    key = re.search(r"got an unexpected keyword argument '(\w+)'", text)
    if key is not None and key[1] in known.get('args', {}):
        return (
            f'unknown key {key[1]!r} of {getattr(known.get("obj_type"), "__name__", known.get("obj_type"))}'
        )
    missing = re.search(r'missing \d+ required .*: (.*)', text)
    if missing is not None and frames[-1] is building[-1]:
        return f'{getattr(known.get("obj_type"), "__name__", known.get("obj_type"))} lacks {missing[1]}'
    return None


def _leave(message: str, code: int) -> NoReturn:
    # With several processes each rank meets the same mistake; one line is enough.
    if os.environ.get('RANK', '0') == '0':
        print(message, file=sys.stderr, flush=True)
    sys.exit(code)
