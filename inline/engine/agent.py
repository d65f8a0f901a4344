"""torchrun for trainings that can be stopped: what tools/dist_train.sh and tools/dist_test.sh start.

It takes torchrun's arguments and differs in how things end. SIGTERM and SIGUSR1 are handed to the workers,
which save and leave; that end is no failure, and neither it nor a mistake of the user is tried again. The
exit code says what happened, in one line instead of a traceback: 0 done, 75 stopped and saved, 2 a mistake of
the user, 1 a worker failed more often than allowed, 128 + n ended by signal n with nothing saved.
"""

import logging
import os
import signal
import socket
import sys
from types import FrameType
from unittest import mock

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError
from torch.distributed.launcher import api
from torch.distributed.run import parse_args, run

from inline.engine.signals import PREEMPTED, RESTARTED, STOP_SIGNALS, signal_name
from inline.errors import UserError, exit_on_user_error

USER_ERROR = 2
# How long workers may take to save after a signal; then they are ended as torchrun would, by SIGKILL at last.
GRACE_SECONDS = int(os.environ.get('GRACE_SECONDS', '300'))


class Agent(LocalElasticAgent):
    """torchrun's agent, which starts and watches the workers of one machine."""

    _signalled = False
    _preempted = False

    def run(self, role: str = 'default') -> RunResult:
        for signum in STOP_SIGNALS:
            signal.signal(signum, self._hand_on)
        signal.signal(signal.SIGALRM, self._lose_patience)
        result = super().run(role)
        if self._preempted:
            sys.exit(PREEMPTED)
        return result

    def _hand_on(self, signum: int, _: FrameType | None) -> None:
        workers = self._pcontext
        alive = isinstance(workers, SubprocessContext) and [
            handler.proc for handler in workers.subprocess_handlers.values() if handler.proc.poll() is None
        ]
        if not alive:
            raise SignalException('no workers to stop', signal.Signals(signum))
        self._signalled = True
        for process in alive:
            process.send_signal(signum)
        signal.alarm(GRACE_SECONDS)

    def _lose_patience(self, *_: object) -> None:
        raise SignalException(f'workers did not stop in {GRACE_SECONDS} s', signal.SIGTERM)

    def _start_workers(self, worker_group: WorkerGroup) -> dict:
        if self._signalled:
            raise SignalException('asked to stop while workers were down', signal.SIGTERM)
        return super()._start_workers(worker_group)

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        # torchrun counts failures only; workers are also started again when a lost machine comes back.
        os.environ[RESTARTED] = '1'
        super()._restart_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        codes = {failure.exitcode for failure in result.failures.values()}
        # Torch ends the rest when the first one leaves, and some are slow: all have saved by then.
        if PREEMPTED in codes and codes <= {PREEMPTED, *(-signum for signum in STOP_SIGNALS)}:
            self._preempted = True
            ranks = [worker.global_rank for worker in worker_group.workers]
            return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks))
        if self._signalled or USER_ERROR in codes:
            self._remaining_restarts = 0
        elif codes and self._remaining_restarts:
            rank, first = min(result.failures.items(), key=lambda item: item[1].timestamp)
            left = self._remaining_restarts - 1
            print(f'{_ended(rank, first)}: starting all again, {left} restarts left', file=sys.stderr)
        return result


def main() -> None:
    args = parse_args(sys.argv[1:])
    if args.local_addr is None:
        args.local_addr = _address_towards(args.rdzv_endpoint.rsplit(':', 1)[0])
    # Torch's shared store stays where the first rank 0 was, even if that machine is the one that is lost.
    os.environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] = '1'
    # SIGTERM is ours (see Agent.run); these still end the run as torchrun does it.
    args.signals_to_handle = 'SIGINT,SIGHUP,SIGQUIT'
    # Its lines about workers that end would call a stop with code 75 a failure; ours tell the others.
    logging.getLogger('torch.distributed.elastic.multiprocessing.api').setLevel(logging.CRITICAL)
    try:
        with mock.patch.object(api, 'LocalElasticAgent', Agent):
            run(args)
    except SignalException as error:
        print(f'stopped by {error.sigval.name}', file=sys.stderr)
        sys.exit(128 + error.sigval)
    except ChildFailedError as error:
        sys.exit(_tell_failure(error))
    except RendezvousConnectionError as error:
        raise UserError(
            f'no machines can meet at {args.rdzv_endpoint}: is NODE_RANK 0 running on MASTER_ADDR, '
            'and is PORT free there?'
        ) from error
    except RendezvousTimeoutError as error:
        raise UserError(f'fewer than {args.nnodes} machines came to {args.rdzv_endpoint} in time') from error


def _address_towards(host: str) -> str:
    """The address of this machine from which `host` is reached: no name of it needs to be known there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: for datagrams this only chooses the way, whatever the port.
            probe.connect((host, 9))
        except OSError as error:
            raise UserError(
                f'MASTER_ADDR {host!r} is not known or not reachable: {error.strerror}'
            ) from error
        return probe.getsockname()[0]


def _tell_failure(error: ChildFailedError) -> int:
    rank, failure = error.get_first_failure()
    if failure.exitcode == USER_ERROR:
        # The worker has told it.
        return USER_ERROR
    print(f'error: {_ended(rank, failure)}; what it printed above says why', file=sys.stderr)
    return 1


def _ended(rank: int, failure: ProcessFailure) -> str:
    if failure.exitcode < 0:
        return f'process {rank} was killed by {signal_name(-failure.exitcode)}'
    return f'process {rank} ended with exit code {failure.exitcode}'


if __name__ == '__main__':
    with exit_on_user_error():
        main()
