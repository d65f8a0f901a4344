"""Signals that ask a training to stop, and what its end tells the launcher.

SIGTERM is how schedulers, containers and torchrun end a process; SIGUSR1 is SLURM's warning before they do.
Before training begins there is nothing to lose and the process leaves at once. From then on a signal is only
noted: :class:`inline.engine.preemption.PreemptionHook` saves a checkpoint at the next step and leaves. A
second signal changes nothing, so it can't break off the checkpoint that is being written.

This module imports nothing heavy: signals are watched before torch is imported.
"""

import os
import signal
import sys
import threading

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

# sysexits.h calls it EX_TEMPFAIL, "try again later". It is no code that Python, a shell or a signal gives.
PREEMPTED = 75

# How long data workers stay after a signal to all processes of a job, at the most.
WORKER_SECONDS = 300

# In the environment of workers that our agent (inline/engine/agent.py) starts again.
RESTARTED = 'INLINE_RESTARTED'


class StopRequest:
    """The first signal that asked this process to stop, and whether it still leaves at once."""

    def __init__(self) -> None:
        self.signum = 0
        self.at_once = True
        self._watching = False

    def watch(self) -> None:
        """Take the signals over; call it from the main thread, as early as possible."""
        if self._watching:
            return
        self._watching = True
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        for signum in STOP_SIGNALS:
            signal.signal(signum, lambda *_: None)
        # The interpreter writes to the pipe the moment a signal arrives. A handler would have to wait until
        # the main thread is back from C++, where it may sit for minutes, waiting for other processes.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(reader,), daemon=True).start()
        os.register_at_fork(after_in_child=_obey_the_parent_only)

    def ignore(self) -> None:
        """Let no signal change the exit code any more: the interpreter drops handlers early, but not this."""
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)

    def _listen(self, reader: int) -> None:
        while True:
            # The pipe tells of every signal that Python handles, SIGINT and SIGCHLD among them.
            signum = os.read(reader, 1)[0]
            if signum not in STOP_SIGNALS:
                continue
            self.signum = self.signum or signum
            if self.at_once:
                _leave(f'stopped by {signal_name(signum)} before training began: nothing to save')


def _leave(message: str) -> None:
    if int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0'))) == 0:
        print(message, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(PREEMPTED)


def _obey_the_parent_only() -> None:
    """In a forked data worker: let a signal that was sent to all processes of a job pass by.

    SLURM, torchrun and a terminal signal whole groups of processes. A worker that died of it would take the
    training down before it has saved. The training itself still ends its workers with SIGTERM.
    """
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    threading.Thread(target=_wait_for_the_parent, daemon=True).start()


def _wait_for_the_parent() -> None:
    """End this process when its parent asks for it, or long after somebody else did.

    A signal that comes while the same one is waiting to be taken is lost, the parent's as well as any.
    """
    info: signal.struct_siginfo | None = signal.sigwaitinfo(STOP_SIGNALS)
    while info is not None and info.si_pid != os.getppid():
        info = signal.sigtimedwait(STOP_SIGNALS, WORKER_SECONDS)
    os._exit(0)


def signal_name(signum: int) -> str:
    return signal.Signals(signum).name


stop_request = StopRequest()
