"""A disk that fills up during a run: training continues with one warning and stops with one line."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner

from inline.datasets.validation.skip_unreadable import SkippedSamples
from inline.engine.hooks.full_disk import handle_full_disk
from inline.registry import HOOKS
from inline.utils.errors import BadDataError, UserError
from tests.conftest import ROOT, run_fresh, run_tool

BALLAST = 'ballast'


@HOOKS.register_module()
class FillDisk(Hook):
    """Fills a small disk before a step; simulates it with a file size limit of 0 bytes on another disk."""

    def __init__(self, step: int, is_small: bool) -> None:
        self.step = step
        self.is_small = is_small

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: object = None) -> None:  # noqa: ARG002
        if runner.iter != self.step:
            return
        if not self.is_small:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            return
        with (Path(runner.work_dir).parent / BALLAST).open('wb', buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield a folder, and whether it is a separate small disk, which only root can mount."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=48m', 'tmpfs', str(folder)]
    is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield folder, is_mounted
    if is_mounted:
        subprocess.run(['umount', '-l', str(folder)], check=True)


CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=['tests.engine.hooks.test_full_disk'])
custom_hooks = [dict(type='inline.FillDisk', step={fill_at}, is_small={is_small})]
train_cfg = dict(max_iters=48, val_interval=48)
train_dataloader = dict(num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=16, save_best=None))
"""


def train(folder: Path, data: Path, *flags: str, fill_at: int, is_small: bool) -> tuple[int, str]:
    config = data / 'full_disk.py'
    base = str(ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py')
    config.write_text(CONFIG.format(base=base, fill_at=fill_at, is_small=is_small))
    command = ['tools/train.py', str(config), '--work-dir', str(folder), '--data-root', str(data), *flags]
    if is_small:
        done = run_tool(*command)
    else:
        # The limit would also apply to the output of a warm process, which goes to files.
        done = run_fresh([sys.executable, *command], env={**os.environ, 'PYTHONPATH': str(ROOT)})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_run_survives_a_full_disk(small_disk: tuple[Path, bool], digit_scenes: Path) -> None:
    disk, is_small = small_disk
    folder, data = disk / 'run', digit_scenes.parent
    code, output = train(folder, data, fill_at=17, is_small=is_small)
    assert code == 2, output[-3000:]
    assert 'Traceback' not in output
    assert output.count('disk full, no logs and curves are written to') == 1
    assert output.count('checkpoint not saved to') == 1
    assert output.splitlines()[-1].startswith('error: the last checkpoint could not be saved to ')
    assert [path.name for path in folder.glob('*.pth')] == ['iter_16.pth']
    assert Path((folder / 'last_checkpoint').read_text()).name == 'iter_16.pth'
    if is_small:
        code, output = train(folder, data, '--resume', fill_at=99, is_small=True)
        assert code == 2, output[-3000:]
        assert 'Traceback' not in output
        last = output.splitlines()[-1]
        assert last.startswith('error: cannot write ')
        assert 'No space left on device; the last checkpoint is ' in last
        (disk / BALLAST).unlink()
    code, output = train(folder, data, '--resume', fill_at=99, is_small=is_small)
    assert code == 0, output[-3000:]
    assert Path((folder / 'last_checkpoint').read_text()).name == 'iter_48.pth'


def test_only_errors_of_a_full_disk_are_handled(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), handle_full_disk(str(tmp_path)):
        raise PermissionError(errno.EACCES, 'Permission denied')
    with pytest.raises(UserError) as caught, handle_full_disk(str(tmp_path)):
        raise OSError(errno.EDQUOT, 'Disk quota exceeded', 'a.json')
    message = f'cannot write a.json in {tmp_path}: Disk quota exceeded; no checkpoint was saved; '
    assert str(caught.value).startswith(message)


def test_skipped_samples_that_cannot_be_recorded_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / 'data_validation').touch()
    with pytest.raises(BadDataError, match=r"^a is empty; '.*' cannot be written: "):
        SkippedSamples(tmp_path / 'data_validation', 'dataset_0', 10, 5).add('a is empty')
