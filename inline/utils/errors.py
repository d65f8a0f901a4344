"""User errors, reported in one line instead of a traceback."""

import argparse
import difflib
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

# MMEngine prepends one of these to the message for every module around the one that failed.
_BUILD_PREFIX = re.compile(r'^(class `\w+` in [\w/.]+: )+')
# torch prepends this to the message of an error in a data worker.
_WORKER_PREFIX = re.compile(r'^Caught \w+ in DataLoader worker process \d+\.\n.*\n[\w.]+: ', re.DOTALL)
# Seconds that a rank above 0 waits for rank 0, which may still be importing packages, to report an error.
RANK_ZERO_SECONDS = 60


class UserError(ValueError):
    """An error that the user can correct. The message quotes the value and says what is allowed.

    Values may come from untrusted files, so the message is made :func:`printable`.
    """

    def __init__(self, message: str = '') -> None:
        super().__init__(printable(message, keep='\n\t'))


class BadDataError(UserError):
    """An error in the data, known only to the rank that loaded it."""


class UnreadableError(BadDataError):
    """A sample that cannot be loaded: skipped and counted in training, an error in testing."""


class TooSmallError(UserError):
    """An image that is smaller than the smallest input of the model."""


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that raises a :class:`UserError` instead of printing its usage.

    Flags cannot be abbreviated: an abbreviation may be another flag, misspelt.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if 'arguments are required' in message or 'unrecognized arguments' in message:
            # Report the misspelt flag rather than the missing one.
            known = self._flags()
            flags = (word.split('=')[0] for word in self._words if word.startswith('--'))
            for flag in flags:
                if flag not in known:
                    close = difflib.get_close_matches(flag, known, n=1)
                    hint = f', did you mean {close[0]}?' if close else ''
                    raise UserError(f'unrecognized argument {flag}{hint}')
        raise UserError(message)

    def _flags(self) -> list[str]:
        """Return all flags, including those of subcommands."""
        flags = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                flags += [
                    flag for parser in action.choices.values() for flag in parser._option_string_actions
                ]
        return flags


def printable(text: str, keep: str = '') -> str:
    """Escape control characters, which could move the cursor of a terminal or hide text in it.

    Use it for names of tensors, classes and files from untrusted sources.

    Args:
        text: Any text.
        keep: Characters that are not escaped.
    """
    if text.isprintable():
        return text
    return ''.join(char if char.isprintable() or char in keep else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode('unicode_escape').decode()


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Print a :class:`UserError` as ``error: …`` and exit with code 2; exit with 130 after Ctrl-C."""
    try:
        yield
    except BadDataError as error:
        print(f'error: {first_line(error)}', file=sys.stderr, flush=True)
        sys.exit(2)
    except UserError as error:
        _exit_with_error(first_line(error))
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        message = _describe_build_error(error)
        if message is None:
            raise
        _exit_with_error(message)
    except KeyboardInterrupt:
        if process_rank() == 0:
            print('interrupted', file=sys.stderr, flush=True)
        sys.exit(130)


def process_rank() -> int:
    """Return the rank of this process under torchrun or srun, before it has joined a process group."""
    return int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')))


def first_line(error: UserError) -> str:
    """Return the message without the prefixes that MMEngine's builder and data workers add."""
    return _BUILD_PREFIX.sub('', _WORKER_PREFIX.sub('', str(error))).strip()


def _describe_build_error(error: Exception) -> str | None:
    """Describe a config key or value that a toolbox's module does not accept; return None for other errors.

    MMEngine calls the constructor of a module with the keys of its config. The call raises a TypeError or
    KeyError there, or where the module passes the keys on. A constructor may also reject their values.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    builders = [frame for frame in frames if frame.f_code.co_name == 'build_from_cfg']
    if not builders:
        return None
    is_direct, variables = frames[-1] is builders[-1], builders[-1].f_locals
    text = str(error.args[0]) if error.args else ''
    if isinstance(error, KeyError):
        if not is_direct or 'is not in the' not in text:
            return None
        known = getattr(variables.get('registry'), 'module_dict', {})
        close = difflib.get_close_matches(str(variables.get('obj_type')), list(known), n=1)
        return f'unknown type {text.split(". ")[0]}' + (f' (did you mean {close[0]!r}?)' if close else '')
    module = getattr(variables.get('obj_type'), '__name__', variables.get('obj_type'))
    key = re.search(r"got an unexpected keyword argument '(\w+)'", text)
    if key is not None and key[1] in variables.get('args', {}):
        return f'unknown key {key[1]!r} of {module}'
    missing = re.search(r'missing \d+ required .*: (.*)', text)
    if missing is not None and is_direct:
        return f'{module} lacks {missing[1]}'
    # All calls from the builder on are constructors: the last one has rejected its arguments.
    calls = [frame.f_code.co_name for frame in frames[frames.index(builders[-1]) + 1 :]]
    # A TypeError may also be a bug in the constructor.
    if isinstance(error, TypeError) or not calls or set(calls) != {'__init__'}:
        return None
    given = ', '.join(f'{key}={value!r}' for key, value in variables.get('args', {}).items())
    return f'{module}: {" ".join(text.split()) or f"does not accept {given}"}'


def _exit_with_error(message: str) -> NoReturn:
    """Print an error and exit with code 2. Every rank raises the same error: rank 0 prints it."""
    rank = process_rank()
    if rank > 0:
        # The launcher ends all ranks when the first one exits. Rank 0 must have printed the error by then.
        _wait_for_launcher(RANK_ZERO_SECONDS)
        message = f'rank {rank}: {message}'
    print(f'error: {message}', file=sys.stderr, flush=True)
    sys.exit(2)


def _wait_for_launcher(seconds: float) -> None:
    """Wait until the launcher ends this process because rank 0 has exited; return if it does not.

    The exit code is that of rank 0, because srun reports the highest code of all ranks.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # Detach the thread of inline.engine.signals, which would exit with the code of a preempted run.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(2))
    time.sleep(seconds)
