"""Configs and checkpoints written by version 0.1.0, before the restructuring, still load, test and resume."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from inline.apis.loading import build_model
from inline.engine.config import load_config
from tests.conftest import run_tool

FILES = Path(__file__).parent / 'data' / 'previous_version'
CHECKPOINTS = {
    'classification': 'iter_8.pth',
    'detection': 'iter_4.pth',
    'segmentation': 'iter_4.pth',
    'finetune': 'epoch_2.pth',
}
LONGER = {
    'classification': ('train_cfg.max_iters=10', 'iter_10.pth'),
    'detection': ('train_cfg.max_iters=6', 'iter_6.pth'),
    'segmentation': ('train_cfg.max_iters=6', 'iter_6.pth'),
    'finetune': ('train_cfg.max_epochs=3', 'epoch_3.pth'),
}


@pytest.fixture(params=sorted(CHECKPOINTS))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A copy of a run of the previous version: its task and its work directory."""
    task = request.param
    work_dir = tmp_path / task
    shutil.copytree(FILES / task, work_dir)
    (work_dir / 'last_checkpoint').write_text(f'{task}/{CHECKPOINTS[task]}')
    return task, work_dir


@pytest.mark.parametrize('task', sorted(CHECKPOINTS))
def test_features_equal_those_of_the_previous_version(task: str) -> None:
    model, _ = build_model(load_config(FILES / task / 'config.py'), str(FILES / task / CHECKPOINTS[task]))
    image = torch.linspace(-2, 2, 3 * 64 * 64).reshape(1, 3, 64, 64).sin()
    with torch.no_grad():
        levels = model.backbone(image)
    expected = json.loads((FILES / 'features.json').read_text())[task]
    sampled = [level.flatten()[:: level.numel() // 8][:8] for level in levels]
    torch.testing.assert_close(sampled, [torch.tensor(level) for level in expected], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_saved_config_and_checkpoint_can_be_tested(run: tuple[str, Path], digit_scenes: Path) -> None:
    task, work_dir = run
    done = run_tool(
        'tools/test.py',
        work_dir / 'config.py',
        work_dir / CHECKPOINTS[task],
        '--data-root',
        digit_scenes.parent,
        '--work-dir',
        work_dir / 'test',
    )
    assert done.returncode == 0, done.stderr[-2000:]
    metric = {'segmentation': 'mIoU', 'detection': 'bbox'}.get(task, 'accuracy/top1')
    assert metric in done.stdout + done.stderr


@pytest.mark.slow
def test_training_resumes_from_a_saved_config(run: tuple[str, Path], digit_scenes: Path) -> None:
    task, work_dir = run
    longer, last = LONGER[task]
    done = run_tool(
        'tools/train.py',
        work_dir / 'config.py',
        '--resume',
        '--data-root',
        digit_scenes.parent,
        '--work-dir',
        work_dir,
        '--cfg-options',
        longer,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert f'resume: from {work_dir / CHECKPOINTS[task]}' in done.stdout
    assert (work_dir / last).is_file()
