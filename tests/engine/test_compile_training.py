"""Training a compiled model with Mixup."""

from pathlib import Path

import pytest

from tests.conftest import run_tool

CONFIG = 'configs/digits_quick/inline-pvt-nano_digits.py'


@pytest.mark.slow
def test_a_compiled_model_trains_with_mixup(digit_scenes: Path, tmp_path: Path) -> None:
    """With the eager backend: a real compilation takes minutes."""
    config = tmp_path / 'mixed.py'
    config.write_text(
        f"_base_ = '{Path(CONFIG).resolve()}'\n"
        # One stage: tracing takes seconds per block.
        'model = dict(backbone=dict(out_indices=(0,)), head=dict(in_channels=24),'
        "             train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8)]))\n"
        "compile = dict(backend='eager')\n"
    )
    options = [
        f'train_dataloader.dataset.data_root={digit_scenes / "classification"}',
        'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
        'train_dataloader.batch_size=2',
        'train_cfg.max_iters=2',
        'default_hooks.logger.interval=1',
    ]
    done = run_tool(
        'tools/train.py', config, '--no-validate', '--work-dir', tmp_path / 'run', '--cfg-options', *options
    )
    assert done.returncode == 0, done.stderr
    assert 'has been "compiled"' in done.stdout + done.stderr
    assert (tmp_path / 'run' / 'iter_2.pth').exists()
