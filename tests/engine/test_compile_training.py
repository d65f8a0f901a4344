"""Training with ``compile=True``, Mixup and CutMix included."""

from pathlib import Path

import pytest

from tests.conftest import run_tool

CONFIG = 'configs/digits_quick/inline-pvt-nano_digits.py'


@pytest.mark.slow
def test_a_model_trains_compiled_with_mixed_images(digit_scenes: Path, tmp_path: Path) -> None:
    """Traced by dynamo and run without a compiler, which would take minutes."""
    config = tmp_path / 'mixed.py'
    config.write_text(
        f"_base_ = '{Path(CONFIG).resolve()}'\n"
        "model = dict(train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8)]))\n"
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
