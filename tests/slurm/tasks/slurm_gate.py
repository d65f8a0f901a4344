"""Hook for jobs of tests: a training run that waits at chosen steps. Imported by ``custom_imports``.

Not in the package ``tests``, which removes SLURM's variables from the environment.
"""

import os
import time
from pathlib import Path
from typing import Any

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from inline.engine.signals import stop_request


@HOOKS.register_module(force=True)
class Gate(Hook):
    """Wait before the steps in ``GATES`` until the work directory has a file ``open``, or for a stop signal.

    Every rank that waits writes a file ``at_STEP_RANK``.
    """

    def before_train_iter(self, runner: Runner, **_: Any) -> None:
        if str(runner.iter + 1) not in os.environ.get('GATES', '').split():
            return
        folder = Path(runner.work_dir)
        (folder / f'at_{runner.iter + 1}_{get_rank()}').touch()
        while not (folder / 'open').exists() and not stop_request.signum:
            time.sleep(0.05)
