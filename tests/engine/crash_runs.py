"""Trainings that are killed, in forked processes that run like tools/train.py without importing the stack."""

import argparse
import hashlib
import json
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.hooks import Hook
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPERS, TRANSFORMS
from mmpretrain.utils import register_all_modules

from inline.checkpoints import read_file
from inline.engine.hooks import checkpoint as checkpoints
from inline.engine.launch import train
from inline.utils import atomic
from inline.utils.errors import exit_on_user_error
from tests.conftest import ROOT, free_port

register_all_modules(init_default_scope=False)
CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'


@TRANSFORMS.register_module()
class Noise(BaseTransform):
    """Adds noise from the generators of Python, NumPy and torch, all of which augmentations use."""

    def transform(self, results: dict) -> dict:
        noise = 40 * (random.random() + np.random.rand() + torch.rand(()).item())
        results['img'] = (results['img'] + noise).clip(0, 255).astype(np.uint8)
        return results


@OPTIM_WRAPPERS.register_module()
class ScaledOptimWrapper(AmpOptimWrapper):
    """MMEngine's wrapper for mixed precision with a loss scaler that works without a GPU."""

    def __init__(self, **options: Any) -> None:
        OptimWrapper.__init__(self, **options)
        self._scale_update_param = None
        self.cast_dtype = None
        self.loss_scaler = torch.amp.GradScaler('cpu', init_scale=2.0**8, growth_interval=3)

    optim_context = OptimWrapper.optim_context


@HOOKS.register_module()
class TraceHook(Hook):
    """Records the batch and the random numbers of each step in a file."""

    priority = 'LOWEST'

    def __init__(self, folder: str) -> None:
        rank = os.environ.get('RANK', '0')
        self.file = os.open(f'{folder}/trace{rank}.txt', os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        digest = hashlib.sha256(b''.join(image.numpy().tobytes() for image in data_batch['inputs']))
        drawn = random.random(), float(np.random.rand()), torch.rand(()).item()
        line = json.dumps([runner.iter, batch_idx, digest.hexdigest()[:16], *drawn])
        os.write(self.file, f'{line}\n'.encode())


@dataclass
class Attempt:
    """How an attempt to train ends: regularly, at the nth kill point, or by a signal from outside.

    Attributes:
        points: Kill at this kill point. Kill points are steps and the system calls of a save.
        seconds: Kill from outside, this long after the first save has begun.
        rank: Rank that reaches the kill point; all ranks are killed then.
        patch: Called in the child before it trains.
    """

    points: int | None = None
    seconds: float | None = None
    rank: int = 0
    patch: Callable[[], None] | None = None


@dataclass
class Runs:
    """Trainings with the same options in one work directory."""

    folder: Path
    data_root: Path
    options: dict[str, Any] = field(default_factory=dict)
    processes: int = 1

    def __post_init__(self) -> None:
        self.folder.mkdir()
        # Shared with the children: whether a save has begun, and whether one is in progress.
        self.shared = mmap.mmap(-1, 2)

    def attempt(self, plan: Attempt, resume: str | None = 'auto') -> tuple[int, bool]:
        """Train; return the exit code (-9 if killed) and whether the run was killed inside a save."""
        self.shared[:] = b'\0\0'
        port = free_port()
        children = [self._fork(rank, port, plan, resume) for rank in range(self.processes)]
        if plan.seconds is not None:
            while not self.shared[0] and not any(_has_ended(child) for child in children):
                time.sleep(0.005)
            time.sleep(plan.seconds)
            for child in children:
                os.kill(child, signal.SIGKILL)
        killed = children[plan.rank]
        codes = {killed: os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1])}
        for child in children:
            if child != killed:
                if codes[killed] == -signal.SIGKILL:
                    os.kill(child, signal.SIGKILL)
                codes[child] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return codes[killed], bool(self.shared[1])

    def output(self) -> str:
        return (self.folder / 'output0.txt').read_text()

    def state(self) -> dict[str, Any]:
        """Return the last checkpoint without what must differ between runs: times and folder names."""
        state = read_file((self.folder / 'last_checkpoint').read_text())
        del state['meta']
        hub = state['message_hub']
        hub['log_scalars'] = {
            key: value._log_history.tolist() for key, value in hub['log_scalars'].items() if 'time' not in key
        }
        for key in ('cfg', 'last_ckpt', 'best_ckpt', 'experiment_name'):
            hub['runtime_info'].pop(key, None)
        return state

    def trace(self, rank: int = 0) -> dict[int, list]:
        """Return the distinct records of each step over all attempts."""
        steps: dict[int, set] = {}
        for line in (self.folder / f'trace{rank}.txt').read_text().splitlines():
            steps.setdefault(json.loads(line)[0], set()).add(line)
        return {step: sorted(lines) for step, lines in steps.items()}

    def _fork(self, rank: int, port: str, plan: Attempt, resume: str | None) -> int:
        sys.stdout.flush()
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            output = os.open(self.folder / f'output{rank}.txt', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout = open(1, 'w', buffering=1, closefd=False)  # noqa: SIM115 (open until the child exits)
            sys.stderr = open(2, 'w', buffering=1, closefd=False)  # noqa: SIM115
            if self.processes > 1:
                os.environ.update(
                    RANK=str(rank),
                    WORLD_SIZE=str(self.processes),
                    LOCAL_RANK=str(rank),
                    MASTER_ADDR='127.0.0.1',
                    MASTER_PORT=port,
                )
            _install_kill_points(self.shared, plan.points if rank == plan.rank else None)
            if plan.patch is not None:
                plan.patch()
            with exit_on_user_error():
                train(self._arguments(resume))
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _arguments(self, resume: str | None) -> argparse.Namespace:
        options = {'custom_hooks': [], **self.options}
        options['custom_hooks'] = [
            *options['custom_hooks'],
            {'type': 'TraceHook', 'folder': str(self.folder)},
        ]
        return argparse.Namespace(
            config=str(CONFIG),
            work_dir=str(self.folder),
            data_root=str(self.data_root),
            cfg_options=options,
            launcher='pytorch' if self.processes > 1 else 'none',
            trust_checkpoint=False,
            local_rank=0,
            resume=resume,
            pretrained=None,
            amp=False,
            no_validate=False,
            auto_scale_lr=False,
            epochs=None,
            verbose=False,
        )


def _install_kill_points(shared: mmap.mmap, kill_at: int | None) -> None:
    """Kill this process at a kill point: at a step, or before or after a system call of a save."""
    passed = 0

    def kill_point() -> None:
        nonlocal passed
        passed += 1
        if passed == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def surrounded(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            kill_point()
            outcome = call(*args, **options)
            kill_point()
            return outcome

        return wrapper

    fsync, write = os.fsync, atomic.atomic_write

    def slow_fsync(handle: int) -> None:
        # Keep half of the file, like a power failure before the file was synchronized.
        size = os.fstat(handle).st_size
        if passed + 1 == kill_at and os.path.isfile(f'/proc/self/fd/{handle}'):
            # By name: the descriptor is for reading only.
            os.truncate(f'/proc/self/fd/{handle}', size // 2)
        kill_point()
        time.sleep(0.01)
        fsync(handle)

    def atomic_write(path: str | Path, content: bytes) -> None:
        shared[:] = b'\1\1'
        write(path, content)
        shared[1] = 0

    os.fsync, os.replace = slow_fsync, surrounded(os.replace)
    atomic.atomic_write = checkpoints.atomic_write = atomic_write
    TraceHook.after_train_iter = lambda *_, **__: kill_point()


def _has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
