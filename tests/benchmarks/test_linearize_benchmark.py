"""The measurement of linearised models: accuracy after each phase, and times."""

from pathlib import Path

import pytest
import torch

from benchmarks.linearize import save_swapped, time_models
from inline.apis.loading import build_model
from inline.engine.config import load_config
from inline.openmmlab.patches import apply_patches
from inline.reproduce.linearize import Linearization
from inline.utils.tables import read_csv
from tests.conftest import ROOT, run_tool


@pytest.fixture
def softmax(tmp_path: Path) -> Path:
    """Config of a softmax classifier, with a checkpoint next to it."""
    apply_patches()
    config = tmp_path / 'softmax.py'
    config.write_text(
        f"_base_ = '{ROOT / 'configs/digits_quick/inline-pvt-nano_digits.py'}'\n"
        "model = dict(backbone=dict(mixers=dict(type='Softmax', sr_ratio=1)))\n"
        'train_dataloader = dict(num_workers=0, persistent_workers=False)\n'
    )
    model, _ = build_model(load_config(config))
    torch.save({'state_dict': model.state_dict()}, tmp_path / 'teacher.pth')
    return config


def test_the_swapped_model_has_all_weights_that_both_attentions_share(softmax: Path) -> None:
    folder = softmax.parent
    paths = Linearization(softmax, str(folder / 'teacher.pth'), folder / 'out').write_configs()
    save_swapped(load_config(paths['distill']), folder / 'swapped.pth')
    swapped, teacher = (
        torch.load(folder / name, weights_only=True)['state_dict'] for name in ('swapped.pth', 'teacher.pth')
    )
    assert {name for name in swapped if name not in teacher} == {
        name for name in swapped if '.mixer.residual.' in name
    }
    for name, tensor in teacher.items():
        assert swapped[name].equal(tensor), name


def test_times_of_both_models_are_written_for_every_size(softmax: Path) -> None:
    rows = list(time_models(load_config(softmax), [32, 48], repetitions=2))
    assert [row['side'] for row in rows] == ['32', '48']
    for row in rows:
        assert float(row['softmax ms']) > 0 < float(row['InLine ms'])
        assert float(row['speedup']) > 0


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['phases'], 'phases needs the weights of the softmax model: --from CHECKPOINT'),
        (['phases', '--from', 'missing.pth'], "--from 'missing.pth' does not exist"),
        (['times', '--sizes', '0'], '--sizes 0: must be'),
    ],
)
def test_wrong_arguments_are_one_line(softmax: Path, words: list[str], message: str) -> None:
    done = run_tool('benchmarks/linearize.py', words[0], softmax, *words[1:])
    assert done.returncode != 0
    assert message in done.stderr
    assert 'Traceback' not in done.stderr


@pytest.mark.exhaustive
def test_every_phase_is_trained_and_tested(digit_scenes: Path, softmax: Path, tmp_path: Path) -> None:
    done = run_tool(
        'benchmarks/linearize.py', 'phases', softmax, '--from', tmp_path / 'teacher.pth', '--epochs', 2,
        '--work-dir', tmp_path / 'work', '--results', tmp_path / 'results',
        '--data-root', digit_scenes.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_csv(tmp_path / 'results' / 'linearize.csv')
    assert [row['epochs'] for row in rows] == ['0', '0', '1', '2', '2', '2']
    assert all(0 <= float(row['top1']) <= 100 and row['digest'] for row in rows)
