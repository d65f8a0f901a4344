"""A disk that is full in the middle of a run: it trains on, tells once, and stops with a line."""

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

from inline.datasets.skipping import SkippedSamples
from inline.engine.full_disk import watch_for_full_disk
from inline.errors import BadDataError, UserError
from inline.registry import HOOKS
from tests.conftest import ROOT, run_fresh

BALLAST = 'ballast'


@HOOKS.register_module()
class FillDisk(Hook):
    """Takes all room before a step: on a small disk by a file, on another by a limit of no bytes."""

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
    """A folder, and whether it is a disk of its own: only root may make one."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=48m', 'tmpfs', str(folder)]
    is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield folder, is_mounted
    if is_mounted:
        subprocess.run(['umount', '-l', str(folder)], check=True)


CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=['tests.engine.test_full_disk'])
custom_hooks = [dict(type='inline.FillDisk', step={fill_at}, is_small={is_small})]
train_cfg = dict(max_iters=60, val_interval=60)
train_dataloader = dict(num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=20, save_best=None))
"""


def train(folder: Path, data: Path, *flags: str, fill_at: int, is_small: bool) -> tuple[int, str]:
    config = data / 'full_disk.py'
    base = str(ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py')
    config.write_text(CONFIG.format(base=base, fill_at=fill_at, is_small=is_small))
    done = run_fresh(
        [
            *(sys.executable, 'tools/train.py', str(config)),
            *('--work-dir', str(folder), '--data-root', str(data), *flags),
        ],
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_full_disk_in_a_run(small_disk: tuple[Path, bool], digit_scenes: Path) -> None:
    disk, is_small = small_disk
    folder, data = disk / 'run', digit_scenes.parent
    code, output = train(folder, data, fill_at=21, is_small=is_small)
    assert code == 2, output[-3000:]
    assert 'Traceback' not in output
    assert output.count('no room for log files and curves') == 1
    assert output.count('checkpoint not saved to') == 1
    assert output.splitlines()[-1].startswith('error: the last checkpoint could not be saved to ')
    assert [path.name for path in folder.glob('*.pth')] == ['iter_20.pth']
    assert Path((folder / 'last_checkpoint').read_text()).name == 'iter_20.pth'
    if is_small:
        code, output = train(folder, data, '--resume', fill_at=99, is_small=True)
        assert code == 2, output[-3000:]
        assert 'Traceback' not in output
        last = output.splitlines()[-1]
        assert last.startswith('error: no room for ')
        assert 'No space left on device; the last checkpoint is ' in last
        (disk / BALLAST).unlink()
    code, output = train(folder, data, '--resume', fill_at=99, is_small=is_small)
    assert code == 0, output[-3000:]
    assert Path((folder / 'last_checkpoint').read_text()).name == 'iter_60.pth'


def test_other_errors_are_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), watch_for_full_disk(str(tmp_path)):
        raise PermissionError(errno.EACCES, 'Permission denied')
    with pytest.raises(UserError) as caught, watch_for_full_disk(str(tmp_path)):
        raise OSError(errno.EDQUOT, 'Disk quota exceeded', 'a.json')
    told = f'no room for a.json in {tmp_path}: Disk quota exceeded; no checkpoint was saved; '
    assert str(caught.value).startswith(told)


def test_skipped_samples_that_cannot_be_written_down_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / 'bad_data').touch()
    with pytest.raises(BadDataError, match=r"^a is empty; '.*' cannot be written: "):
        SkippedSamples(str(tmp_path / 'bad_data'), 'dataset_0', 10, 5).add('a is empty')
