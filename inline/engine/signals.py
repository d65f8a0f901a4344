"""Stop signals of a training process, and the exit code for its launcher.

Schedulers, containers and torchrun stop a process with SIGTERM. SLURM sends SIGUSR1 as an early warning.
Ctrl-C in a terminal sends SIGINT. Before training begins, the process exits at once. During training a
signal is only recorded, and :class:`~inline.engine.hooks.preemption.PreemptionHook` saves a checkpoint after
the current step and exits. A second SIGTERM or SIGUSR1 changes nothing, so it cannot interrupt the checkpoint
that is being written. A second Ctrl-C ends the process at once: files are written atomically, so the previous
checkpoint stays.

This module is separate from the hook and does not import torch, because the handlers must be installed before
torch is imported.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from inline.utils.errors import process_rank
from inline.utils.processes import end_with_parent, find_process

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

# EX_TEMPFAIL of sysexits.h ("try again later"). Python, shells and signals never produce this code.
EXIT_PREEMPTED = 75
# Stopped by Ctrl-C without saving the last step: 128 + SIGINT, as in shells.
EXIT_INTERRUPTED = 130
# A terminal sends Ctrl-C to all processes, and a launcher may forward it again. Within this time both count
# as one.
REPEAT_SECONDS = 0.3

# Maximum lifetime of a data worker after a stop signal to the whole job.
WORKER_SECONDS = 300

# Environment variable that the elastic agent (inline/engine/distributed/agent.py) sets for restarted workers.
RESTARTED_ENV = 'INLINE_RESTARTED'
# Environment variable with the process id of the elastic agent.
LAUNCHER_ENV = 'INLINE_LAUNCHER_PID'

# Environment variable with the path of the marker by which tools/slurm_train.sh decides to requeue its job.
PREEMPTED_FILE_ENV = 'INLINE_PREEMPTED_FILE'


class StopRequest:
    """The first stop signal that this process received.

    Attributes:
        signum: Number of the signal, 0 if there was none.
        exit_immediately: Whether a signal ends the process at once. True until training begins.
        before_exit: Called before a signal ends the process at once.
    """

    def __init__(self) -> None:
        self.signum = 0
        self.exit_immediately = True
        self.before_exit: list[Callable[[], None]] = []
        self._is_listening = False
        self._interrupted_at: float | None = None

    def listen(self) -> None:
        """Start to handle stop signals. Call it from the main thread, as early as possible."""
        if self._is_listening:
            return
        self._is_listening = True
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        for signum in STOP_SIGNALS:
            signal.signal(signum, lambda *_: None)
        # Python runs a signal handler only when the main thread returns from C++, where a collective may
        # block it for minutes. It writes to the wake-up descriptor as soon as the signal arrives.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._read_signals, args=(reader,), daemon=True).start()
        os.register_at_fork(after_in_child=_ignore_foreign_signals)

    def ignore_signals(self) -> None:
        """Ignore further signals so that they do not change the exit code; Ctrl-C still ends the process.

        The interpreter drops Python's handlers early when it shuts down; SIG_IGN stays.
        """
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_DFL if signum == signal.SIGINT else signal.SIG_IGN)

    def _read_signals(self, reader: int) -> None:
        while True:
            # The descriptor reports every signal with a Python handler, for example SIGCHLD.
            signum = os.read(reader, 1)[0]
            if signum not in STOP_SIGNALS:
                continue
            self.signum = self.signum or signum
            if self.exit_immediately:
                for clean_up in list(self.before_exit):
                    clean_up()
                _exit_before_training(signum)
            if signum == signal.SIGINT:
                self._handle_interrupt()

    def _handle_interrupt(self) -> None:
        now = time.monotonic()
        if self._interrupted_at is None:
            self._interrupted_at = now
            _print('saving a checkpoint after this step; press Ctrl-C again to exit without it')
        elif now > self._interrupted_at + REPEAT_SECONDS:
            _exit('stopped by a second Ctrl-C: --resume continues from the last checkpoint', EXIT_INTERRUPTED)


def end_with_launcher() -> None:
    """End this process when the elastic agent ends, even by SIGKILL, and data workers with this process.

    Otherwise they would continue without a launcher, and a resumed run would write to the same files.
    """
    launcher = int(os.environ.get(LAUNCHER_ENV, '0'))
    if launcher and os.getppid() == launcher:
        end_with_parent(launcher)
    elif launcher and find_process(launcher) is None:
        sys.exit(f'the launcher, process {launcher}, has ended')
    _end_children_with_this_process()


@cache
def _end_children_with_this_process() -> None:
    parent = 0

    def note_parent() -> None:
        nonlocal parent
        # The kernel watches the thread that forks. Only the main thread lasts as long as the process.
        parent = os.getpid() if threading.get_native_id() == os.getpid() else 0

    def follow_parent() -> None:
        if parent:
            end_with_parent(parent)

    os.register_at_fork(before=note_parent, after_in_child=follow_parent)


def mark_preempted() -> None:
    """Create the marker of a run that a signal has stopped. Rank 0 calls it when the checkpoint is complete.

    srun's exit code is not enough: it is the highest of all ranks, and a rank that takes longer than KillWait
    to exit is killed.
    """
    path = os.environ.get(PREEMPTED_FILE_ENV)
    if path:
        # Without the marker the job ends instead of being requeued. The checkpoint is more important.
        with suppress(OSError):
            Path(path).touch()


def _exit_before_training(signum: int) -> None:
    code = EXIT_INTERRUPTED if signum == signal.SIGINT else EXIT_PREEMPTED
    if int(os.environ.get('SLURM_STEP_NUM_TASKS', '1')) > 1 and 'TORCHELASTIC_RUN_ID' not in os.environ:
        # srun sends SIGTERM to the other ranks when one has failed, and exits with the highest code of all.
        # 75 would hide that of the failed rank.
        code = 1 if signum == signal.SIGTERM else code if process_rank() == 0 else 0
    if process_rank() == 0 and signum == signal.SIGUSR1:
        mark_preempted()
    _exit(f'stopped by {signal_name(signum)} before training began: nothing to save', code)


def _print(message: str) -> None:
    if process_rank() == 0:
        print(message, file=sys.stderr, flush=True)


def _exit(message: str, code: int) -> None:
    _print(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _ignore_foreign_signals() -> None:
    """Let a forked data worker ignore stop signals that do not come from its parent.

    SLURM, torchrun and terminals signal whole process groups. A worker that died from such a signal would
    crash the training before it can save. The training process itself ends its workers with SIGTERM.
    """
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    threading.Thread(target=_exit_on_parent_signal, daemon=True).start()


def _exit_on_parent_signal() -> None:
    """Exit when the parent sends a stop signal, or WORKER_SECONDS after the last one from elsewhere.

    The time limit is needed because a signal is lost while the same signal is pending, even the parent's.
    """
    info: signal.struct_siginfo | None = signal.sigwaitinfo(STOP_SIGNALS)
    while info is not None and info.si_pid != os.getppid():
        info = signal.sigtimedwait(STOP_SIGNALS, WORKER_SECONDS)
    os._exit(0)


def signal_name(signum: int) -> str:
    """Return the name of a signal for messages: SIGTERM, or Ctrl-C for SIGINT."""
    return 'Ctrl-C' if signum == signal.SIGINT else signal.Signals(signum).name


stop_request = StopRequest()
