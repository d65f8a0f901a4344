"""SLURM tasks that do not have to import the stack: a server forks one that has.

Most of the CPU time of a short training is spent on imports. ``PYTHON`` of a job is this file, the client,
which SLURM starts, signals and kills. The server runs the tool with the client's arguments, environment and
descriptors, passes signals on, and kills the tool when the client is gone. The client exits like the tool.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from select import select
from typing import Any

TASKS = Path(__file__).parent / 'tasks'


def start_server(path: Path) -> BaseProcess:
    """Start the server at the socket `path`, in a fork of a process that has imported the stack."""
    from tests.warm import _SERVER

    process = _SERVER.Process(target=_serve, args=(str(path),))
    process.start()
    return process


def write_client(path: Path, server: Path, before: str = '') -> str:
    """Write a script for ``PYTHON``: the shell commands `before`, then the client. Return its path."""
    # The interpreter starts without site-packages, which takes a fraction of the time.
    client = f'{sys.executable} -I -S {Path(__file__)} {server}'
    path.write_text(f'#!/usr/bin/env bash\n{before.format(client=client)}\nexec {client} "$@"\n')
    path.chmod(0o755)
    return str(path)


def _serve(path: str) -> None:
    # Nobody waits for the processes that are forked here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(32)
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                with connection:
                    _run(connection)
                os._exit(0)
            connection.close()


def _run(connection: socket.socket) -> None:
    size, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    request = b''
    while len(request) < int.from_bytes(size, 'big'):
        request += connection.recv(1 << 16)
    task = os.fork()
    if task == 0:
        connection.close()
        os._exit(_run_tool(json.loads(request), descriptors))
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(task)
    connected = True
    while ended not in (ready := select([ended, *([connection] if connected else [])], [], [])[0]):
        signals = connection.recv(1) if connection in ready else b''
        connected = bool(signals)
        os.kill(task, signals[0] if signals else signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(task, 0)[1])
    with suppress(OSError):
        connection.sendall(code.to_bytes(2, 'big', signed=True))


def _run_tool(request: dict[str, Any], descriptors: list[int]) -> int:
    from tests.warm import run_command

    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    os.chdir(request['folder'])
    sys.path.insert(0, str(TASKS))
    return run_command(request['command'], request['env'])


def main() -> int:
    """Run the command after the name of the socket; return its exit code."""
    path, *command = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        request = {'command': command[1:], 'folder': os.getcwd(), 'env': dict(os.environ)}
        content = json.dumps(request).encode()
        socket.send_fds(connection, [len(content).to_bytes(4, 'big')], [0, 1, 2])
        connection.sendall(content)
        for signum in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(signum, lambda number, _: connection.sendall(bytes([number])))
        code = int.from_bytes(connection.recv(2), 'big', signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == '__main__':
    sys.exit(main())
