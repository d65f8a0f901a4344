"""Tries many commands and pieces of code in one process that has imported the stack once.

`python -m tests.docs.runner JOBS RESULTS` reads jobs as JSON and writes the exit code and output of each.
Each job runs in a forked process of its own: what it imports, registers or changes is gone after it.
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

# Seconds until a page that was started must have said that it is open.
PATIENCE = 200
# argparse alone can tell what a tool takes, and a tool has read all its words when it leaves the parser.
_parse_args = argparse.ArgumentParser.parse_args


class Parsed(BaseException):
    """The words of a command were understood; nothing more is wanted."""


def main() -> None:
    jobs, results = Path(sys.argv[1]), Path(sys.argv[2])
    # What nearly every tool imports: the forks need not do it again.
    importlib.import_module('tests.warm_imports')
    kinds: dict[str, Callable[[Any], None]] = {
        'parse': parse,
        'run': run,
        'start': start,
        'code': execute,
        'furnish': lambda _: importlib.import_module('tests.docs.belongings').furnish(),
    }
    done = [
        in_a_process(lambda job=job: kinds[job['kind']](job['what']), Path(job['folder']))
        for job in json.loads(jobs.read_text())
    ]
    results.write_text(json.dumps(done))


def in_a_process(work: Callable[[], None], folder: Path) -> tuple[int, str]:
    """Exit code and output of `work` in a process that runs in `folder`."""
    with tempfile.TemporaryFile('w+') as output:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            # Under pytest these are not the descriptors 1 and 2.
            sys.stdout, sys.stderr = (os.fdopen(descriptor, 'w') for descriptor in (1, 2))
            os.chdir(folder)
            os._exit(exit_code(work))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return code, output.read()


def parse(words: Sequence[str]) -> None:
    """Let a tool read its words, and stop it there."""

    def parse_and_leave(*args: Any, **kwargs: Any) -> None:
        _parse_args(*args, **kwargs)
        raise Parsed

    argparse.ArgumentParser.parse_args = parse_and_leave  # type: ignore[method-assign, assignment]
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
    """Run a command that does not end by itself until it says `sign`, then stop it as Ctrl-C does."""
    words, sign = what
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        for descriptor in (1, 2):
            os.dup2(writer, descriptor)
        os._exit(exit_code(lambda: run(words)))
    os.close(writer)
    with os.fdopen(reader) as lines:
        said = []
        for line in lines:
            said.append(line)
            if sign in line:
                os.kill(child, signal.SIGINT)
                break
    os.waitpid(child, 0)
    assert any(sign in line for line in said), ''.join(said)


def execute(blocks: Sequence[tuple[str, str]]) -> None:
    """Blocks of one page, each with its place, one after the other with the same names."""
    names: dict[str, Any] = {'__name__': '__main__'}
    for place, text in blocks:
        exec(compile(text, place, 'exec'), names)


if __name__ == '__main__':
    main()
