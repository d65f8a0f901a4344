"""Launcher of tools/dist_train.sh and tools/dist_test.sh: torchrun's elastic agent with preemption.

It accepts torchrun's arguments. Why torchrun itself is not enough (tried with torch 2.13, including
``--signals-to-handle`` and ``--shutdown-timeout``):

- Workers that save a checkpoint after a signal and exit with code 75 count as failed. torchrun restarts them,
  so a preempted job keeps training until it is killed.
- After SIGTERM torchrun always exits with code 1. A SLURM script cannot tell a saved run from a crash.
- A user error (exit code 2, for example a missing file) is retried ``--max-restarts`` times.
- Each of these prints a traceback of 30 to 60 lines.

Exit codes: 0 finished, 75 stopped by a signal (also Ctrl-C) and saved, 2 user error, 1 a worker failed more
often than ``--max-restarts`` allows, 128 + n ended by signal n without a checkpoint: 130 after a second
Ctrl-C, or after one before training began.
"""

import argparse
import logging
import os
import signal
import socket
import sys
import time
from types import FrameType

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.run import config_from_args, parse_args

from inline.engine.signals import (
    EXIT_INTERRUPTED,
    EXIT_PREEMPTED,
    LAUNCHER_ENV,
    RESTARTED_ENV,
    STOP_SIGNALS,
    signal_name,
)
from inline.utils.errors import UserError, exit_on_user_error

EXIT_USER_ERROR = 2
# Time for workers to save after a signal. Then they get SIGTERM and SIGKILL, as with torchrun.
GRACE_SECONDS = int(os.environ.get('GRACE_SECONDS', '300'))


class PreemptibleAgent(LocalElasticAgent):
    """Elastic agent that forwards stop signals to its workers and treats exit code 75 as a regular end."""

    preempted = False
    _signalled = False

    def run(self, role: str = 'default') -> RunResult:
        for signum in STOP_SIGNALS:
            signal.signal(signum, self._forward_signal)
        signal.signal(signal.SIGALRM, self._end_grace_period)
        return super().run(role)

    def _forward_signal(self, signum: int, _: FrameType | None) -> None:
        workers = self._pcontext
        alive = isinstance(workers, SubprocessContext) and [
            handler.proc for handler in workers.subprocess_handlers.values() if handler.proc.poll() is None
        ]
        if not alive:
            raise SignalException('no running workers', signal.Signals(signum))
        self._signalled = True
        for process in alive:
            process.send_signal(signum)
        signal.alarm(GRACE_SECONDS)

    def _end_grace_period(self, *_: object) -> None:
        raise SignalException(f'workers did not stop within {GRACE_SECONDS} s', signal.SIGTERM)

    def _start_workers(self, worker_group: WorkerGroup) -> dict:
        if self._signalled:
            raise SignalException('signalled between two starts of the workers', signal.SIGTERM)
        return super()._start_workers(worker_group)

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        # TORCHELASTIC_RESTART_COUNT counts failures only, not restarts because a lost machine rejoined.
        os.environ[RESTARTED_ENV] = '1'
        super()._restart_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        codes = {failure.exitcode for failure in result.failures.values()}
        # torch signals the remaining workers when the first one exits. All of them have saved by then.
        if EXIT_PREEMPTED in codes and codes <= {EXIT_PREEMPTED, *(-signum for signum in STOP_SIGNALS)}:
            self.preempted = True
            ranks = [worker.global_rank for worker in worker_group.workers]
            return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks))
        if self._signalled or EXIT_USER_ERROR in codes:
            self._remaining_restarts = 0
        elif codes and self._remaining_restarts:
            left = self._remaining_restarts - 1
            print(f'{_describe_first(result)}: restarting all workers, {left} restarts left', file=sys.stderr)
        return result


def main() -> None:
    """Run the workers described by the command line; exit with one of the codes in the module docstring."""
    args = parse_args(sys.argv[1:])
    if args.local_addr is None:
        args.local_addr = _local_address(args.rdzv_endpoint.rsplit(':', 1)[0])
    # The store that workers would share with the rendezvous stays on the machine of the first rank 0, even
    # after that machine is lost.
    os.environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] = '1'
    # The agent handles STOP_SIGNALS itself. These other signals end the run, as with torchrun.
    os.environ['TORCHELASTIC_SIGNALS_TO_HANDLE'] = 'SIGHUP,SIGQUIT'
    # torch would log every exit with code 75 as a failure.
    logging.getLogger('torch.distributed.elastic.multiprocessing.api').setLevel(logging.CRITICAL)
    # Workers end with this process, even if it is killed.
    os.environ[LAUNCHER_ENV] = str(os.getpid())
    try:
        sys.exit(_run(args))
    except SignalException as error:
        print(f'stopped by {error.sigval.name}', file=sys.stderr)
        sys.exit(128 + error.sigval)
    except RendezvousConnectionError as error:
        raise UserError(_cannot_connect(args.rdzv_endpoint)) from error
    except RendezvousTimeoutError as error:
        raise UserError(f'fewer than {args.nnodes} machines joined {args.rdzv_endpoint} in time') from error


def _run(args: argparse.Namespace) -> int:
    """Run the workers of this machine and return the exit code."""
    config, entrypoint, arguments = config_from_args(args)
    if config.rdzv_configs.get('is_host') == '0':
        _wait_for_host(config.rdzv_endpoint, int(config.rdzv_configs.get('join_timeout', '600')))
    rendezvous = get_rendezvous_handler(
        RendezvousParameters(
            backend=config.rdzv_backend,
            endpoint=config.rdzv_endpoint,
            run_id=config.run_id,
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            local_addr=config.local_addr,
            **config.rdzv_configs,
        )
    )
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=tuple(arguments),
        rdzv_handler=rendezvous,
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        local_addr=config.local_addr,
    )
    assert config.logs_specs is not None
    agent = PreemptibleAgent(spec, config.logs_specs)
    try:
        result = agent.run()
    finally:
        # After a signal, leave the rendezvous open: this machine may rejoin the others.
        if not isinstance(sys.exception(), SignalException):
            rendezvous.shutdown()
    if agent.preempted:
        return EXIT_PREEMPTED
    if not result.is_failed():
        return 0
    codes = {failure.exitcode for failure in result.failures.values()}
    if EXIT_USER_ERROR in codes:
        # The worker has printed the message.
        return EXIT_USER_ERROR
    if codes & {EXIT_INTERRUPTED, -signal.SIGINT}:
        return EXIT_INTERRUPTED
    print(f'error: {_describe_first(result)}; see its output above', file=sys.stderr)
    return 1


def _wait_for_host(endpoint: str, seconds: int) -> None:
    """Wait until the machine with the rendezvous store accepts connections.

    torch waits for the machines that have not joined yet, but not for the one with the store: without one it
    gives up after one or two minutes.
    """
    host, _, port = endpoint.rpartition(':')
    deadline = time.monotonic() + seconds
    is_first = True
    while True:
        left = max(deadline - time.monotonic(), 0.1)
        try:
            # torch's store ignores a connection that closes without a request.
            socket.create_connection((host, int(port)), timeout=min(left, 10)).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise UserError(f'{_cannot_connect(endpoint)} (waited {seconds} s)') from error
        if is_first:
            print(f'waiting up to {seconds} s for NODE_RANK 0 at {endpoint}', file=sys.stderr, flush=True)
            is_first = False
        time.sleep(min(left, 1))


def _cannot_connect(endpoint: str) -> str:
    return f'cannot connect to {endpoint}: is NODE_RANK 0 running on MASTER_ADDR, and is PORT free there?'


def _local_address(host: str) -> str:
    """Return the address of this machine on the route to `host`, so that no host name has to resolve."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing: it only selects the route. Any port will do.
            probe.connect((host, 9))
        except OSError as error:
            raise UserError(f'MASTER_ADDR {host!r} is unknown or unreachable: {error.strerror}') from error
        return probe.getsockname()[0]


def _describe_first(result: RunResult) -> str:
    """Describe the failure that happened first."""
    rank, failure = min(result.failures.items(), key=_failure_time)
    if failure.exitcode < 0:
        return f'rank {rank} was killed by {signal_name(-failure.exitcode)}'
    return f'rank {rank} exited with code {failure.exitcode}'


def _failure_time(item: tuple[int, ProcessFailure]) -> int:
    return item[1].timestamp


if __name__ == '__main__':
    with exit_on_user_error():
        main()
