"""Run many commands and code blocks in forks of one process that has imported the stack.

`python -m tests.docs.runner JOBS RESULTS` reads jobs as JSON and writes the exit code and output of each.
Every job runs in its own fork, so jobs do not affect each other.
"""

import argparse
import importlib
import json
import os
import runpy
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.warm import exit_code

# Seconds that a server may take to report that it is ready.
START_TIMEOUT = 200
# Parsing is the first thing a tool does, so stopping after it checks the arguments and nothing else.
_parse_args = argparse.ArgumentParser.parse_args


class Parsed(BaseException):
    """Raised after the arguments of a command were parsed."""


def main() -> None:
    jobs, results = Path(sys.argv[1]), Path(sys.argv[2])
    # Import once what nearly every tool needs.
    importlib.import_module('tests.warm_imports')
    kinds: dict[str, Callable[[Any], None]] = {
        'parse': parse,
        'run': run,
        'start': start,
        'code': execute,
        'files': lambda _: importlib.import_module('tests.docs.page_files').write_page_files(),
    }
    done = [
        run_in_fork(lambda job=job: kinds[job['kind']](job['what']), Path(job['folder']))
        for job in json.loads(jobs.read_text())
    ]
    results.write_text(json.dumps(done))


def run_in_fork(work: Callable[[], None], folder: Path) -> tuple[int, str]:
    """Run `work` in a forked process in `folder`; return its exit code and output."""
    with tempfile.TemporaryFile('w+') as output:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            # pytest replaces sys.stdout and sys.stderr.
            sys.stdout, sys.stderr = (os.fdopen(descriptor, 'w') for descriptor in (1, 2))
            os.chdir(folder)
            os._exit(exit_code(work))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return code, output.read()


def parse(words: Sequence[str]) -> None:
    """Run a tool up to the point where its arguments are parsed."""

    def parse_and_stop(*args: Any, **kwargs: Any) -> None:
        _parse_args(*args, **kwargs)
        raise Parsed

    argparse.ArgumentParser.parse_args = parse_and_stop  # type: ignore[method-assign, assignment]
    try:
        run(words)
    except Parsed:
        return
    raise AssertionError(f'{shlex.join(words)} read no arguments')


def run(words: Sequence[str]) -> None:
    """`tools/x.py …` or `-m module …`."""
    if words[0] == '-m':
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name='__main__', alter_sys=True)
    else:
        sys.argv = list(words)
        runpy.run_path(words[0], run_name='__main__')


def start(what: tuple[Sequence[str], str]) -> None:
    """Run a server until it prints the expected text, then stop it as Ctrl-C does."""
    words, expected = what
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(START_TIMEOUT)
        for descriptor in (1, 2):
            os.dup2(writer, descriptor)
        os._exit(exit_code(lambda: run(words)))
    os.close(writer)
    with os.fdopen(reader) as lines:
        printed = []
        for line in lines:
            printed.append(line)
            if expected in line:
                os.kill(child, signal.SIGINT)
                break
    os.waitpid(child, 0)
    assert any(expected in line for line in printed), ''.join(printed)


def execute(blocks: Sequence[tuple[str, str]]) -> None:
    """Execute the code blocks of one page in order, in one namespace."""
    names: dict[str, Any] = {'__name__': '__main__'}
    for location, text in blocks:
        exec(compile(text, location, 'exec'), names)


if __name__ == '__main__':
    main()
