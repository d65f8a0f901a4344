"""Tools in processes that do not have to import the stack: a fork server imports it once.

Importing torch and the toolboxes takes several seconds, most of the time of a short run. Each tool runs in a
fork of the server, so that its registrations and patches end with it, as in a fresh process. Processes that
a tool starts through :mod:`inline.reproduce.runs` are forked, too.
"""

import atexit
import contextlib
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

_SERVER = multiprocessing.get_context('forkserver')
_SERVER.set_forkserver_preload(['tests.warm_imports'])


def run_warm(
    command: Sequence[str], folder: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a Python tool in `folder` with the interface of :func:`subprocess.run`."""
    with tempfile.TemporaryDirectory() as temporary:
        out, err = Path(temporary) / 'out', Path(temporary) / 'err'
        process = _SERVER.Process(
            target=_run, args=(list(command), str(folder), dict(env), str(out), str(err))
        )
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(command), timeout)
        return subprocess.CompletedProcess(
            list(command), process.exitcode or 0, out.read_text(), err.read_text()
        )


def skip_slow_reports() -> None:
    """Turn off what dominates a short run: MMEngine's report of the machine, and formatted configs."""
    from mmengine.runner import Runner
    from yapf.yapflib import yapf_api

    Runner._log_env = lambda *_: None
    yapf_api.FormatCode = lambda text, **_: (text, True)


def freeze_imported_objects() -> None:
    """Exclude all objects that exist now from garbage collection.

    The toolboxes create more than a million objects. MMEngine collects garbage whenever it builds a dataset,
    which takes 0.3 s each time, and much longer in a forked process, where it copies every memory page.
    """
    gc.collect()
    gc.freeze()


class ForkedTool:
    """Replacement of :class:`subprocess.Popen` that runs a Python tool in a fork of this process."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        assert command[0] == sys.executable
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        self.returncode: int | None = None
        if self.pid == 0:
            for stream, descriptor in ((stdout, 1), (stderr, 2)):
                if stream is not None:
                    os.dup2(stream.fileno(), descriptor)
            os._exit(run_command(command[1:], env))

    def poll(self) -> int | None:
        return self._collect(os.WNOHANG)

    def wait(self) -> int | None:
        return self._collect(0)

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, 15)

    def _collect(self, flags: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _run(command: list[str], folder: str, env: dict[str, str], out: str, err: str) -> None:
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.chdir(folder)
    from inline.reproduce import runs

    runs.subprocess = SimpleNamespace(Popen=ForkedTool, run=_run_forked)  # type: ignore[assignment]
    sys.exit(run_command(command, env))


def _run_forked(command: Sequence[str], *, env: Mapping[str, str], check: bool) -> Any:
    assert not check
    if command[0] != sys.executable:
        return subprocess.run(command, env=env, check=False)
    tool = ForkedTool(command, env=env)
    tool.wait()
    return tool


def run_command(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a Python tool in this process, which should be a forked one, and return its exit code."""
    os.environ.clear()
    os.environ.update(env)
    sys.argv = list(command)
    code = exit_code(partial(runpy.run_path, command[0], run_name='__main__'))
    with contextlib.suppress(SystemExit):
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def exit_code(work: Callable[[], object]) -> int:
    """Return the exit code of a Python program that calls `work`."""
    code: Any = 0
    try:
        work()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)
