"""Linearize: configs of the phases, and a run from a softmax checkpoint to an InLine model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from inline.apis.loading import build_model
from inline.engine.config import load_config, starting_checkpoints
from inline.engine.launch import build_untrained_model
from inline.openmmlab.patches import apply_patches
from inline.reproduce.linearize import Linearization, default_epochs, distiller_config, student_config
from inline.utils.errors import UserError
from tests.conftest import ROOT, run_tool

SOFTMAX = 'pvt-micro_tiny-imagenet'


@pytest.fixture(autouse=True)
def patches() -> None:
    apply_patches()


def test_the_student_has_inline_mixers_in_the_chosen_stages() -> None:
    cfg = load_config(SOFTMAX)
    assert student_config(cfg, None).model.backbone.mixers == {'type': 'InLine'}
    mixers = student_config(cfg, [1, 2]).model.backbone.mixers
    assert [mixer.type for mixer in mixers] == ['InLine', 'InLine', 'Softmax', 'Softmax']
    assert mixers[2].sr_ratio == 1
    assert cfg.model.backbone.mixers.type == 'Softmax'


def test_kept_stages_have_the_softmax_of_the_config() -> None:
    """By default those that the family's InLine model keeps: stage 4 of Swin-T, most of stage 3 of Swin-B."""
    softmax = {'type': 'Softmax', 'window_size': 12}
    for config in (softmax, [softmax] * 4):
        cfg = load_config('swin-tiny_8xb128_in1k', {'model.backbone.mixers': config})
        inline = {'type': 'InLine'}
        assert student_config(cfg, None).model.backbone.mixers == [inline, inline, inline, softmax]
        assert student_config(cfg, [4]).model.backbone.mixers == [softmax, softmax, softmax, inline]
    mixers = student_config(load_config('swin-base_8xb64_in1k'), None).model.backbone.mixers
    assert [entry['type'] for entry in mixers[2]] == ['InLine'] * 2 + ['Softmax'] * 16


def test_blocks_of_a_deit_are_chosen_as_stages() -> None:
    mixers = student_config(load_config('deit-tiny_8xb512_in1k'), [1, 2]).model.backbone.mixers
    assert [mixer.type for mixer in mixers] == ['InLine'] * 2 + ['Softmax'] * 10


@pytest.mark.parametrize('stages', [None, [1, 2]])
@pytest.mark.parametrize('config', ['pvt-tiny_8xb128_in1k', 'cswin-tiny_8xb128_in1k'])
def test_the_student_starts_from_the_teachers_weights(
    config: str, stages: list[int] | None, tmp_path: Path
) -> None:
    """PVT's softmax reduces its keys with convolutions that are larger than all else in a block."""
    cfg = load_config(config)
    teacher, _ = build_model(cfg)
    torch.save({'state_dict': teacher.state_dict()}, tmp_path / 'teacher.pth')
    cfg = load_config(config)
    weights = str(tmp_path / 'teacher.pth')
    distiller = build_untrained_model(
        distiller_config(cfg, student_config(cfg, stages), weights, matching=True)
    )
    distiller.copy_teacher()
    student, expected = distiller.student.state_dict(), teacher.state_dict()
    for name in ('stages.0.blocks.0.mixer.qkv.weight', 'stages.3.blocks.0.mlp.fc1.weight'):
        assert student[f'backbone.{name}'].equal(expected[f'backbone.{name}'])
    kept = 'backbone.stages.2.blocks.0.mixer.reduction.conv.weight'
    assert (kept in student) == (stages is not None and kept in expected)


@pytest.mark.parametrize(
    ('config', 'stages', 'message'),
    [
        (SOFTMAX, [0, 1], r'stages \[0, 1\]: must be some of 1 to 4'),
        (SOFTMAX, [], r'stages \[\]: must be some of 1 to 4'),
        ('inline-pvt-micro_tiny-imagenet', None, 'needs a backbone of type inline'),
        ('linear-pvt-micro_tiny-imagenet', None, 'softmax mixers; the config also has Linear'),
    ],
)
def test_what_cannot_be_linearized_is_named(config: str, stages: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        student_config(load_config(config), stages)


def test_the_default_length_is_a_fifth_of_the_epochs() -> None:
    assert default_epochs(load_config(SOFTMAX)) == 6
    with pytest.raises(
        UserError, match='counts iterations: give the length of the distillation with --epochs'
    ):
        default_epochs(load_config('configs/digits_quick/inline-pvt-nano_digits.py'))


def test_the_phases_are_plain_configs(tmp_path: Path) -> None:
    job = Linearization(SOFTMAX, 'teacher.pth', tmp_path, match_epochs=1)
    paths = job.write_configs()
    assert list(paths) == ['student', 'match', 'distill']
    match, distill = (load_config(paths[name]).model for name in ('match', 'distill'))
    assert (match.losses[0].type, match.label_weight, match.train_only) == ('inline.MixerLoss', 0, 'mixers')
    assert (distill.losses[0].type, distill.label_weight, distill.train_only) == ('inline.LogitLoss', 1, None)
    for model in (match, distill):
        assert model.teacher.backbone.mixers.type == 'Softmax'
        assert model.student == load_config(paths['student']).model
        assert model.teacher_checkpoint == 'teacher.pth'


def test_detectors_need_only_the_teachers_weights(tmp_path: Path) -> None:
    """Not those that the backbone of the softmax config was trained from."""
    job = Linearization('mask-rcnn_pvt-small_fpn_1x_coco', 'teacher.pth', tmp_path, epochs=1, match_epochs=1)
    assert any(
        key.endswith('init_cfg.checkpoint') for key, _ in starting_checkpoints(load_config(job.config))
    )
    paths = job.write_configs()
    assert not list(starting_checkpoints(load_config(paths['student'])))
    for phase in ('match', 'distill'):
        found = list(starting_checkpoints(load_config(paths[phase])))
        assert found == [('model.teacher_checkpoint', 'teacher.pth')]


@pytest.mark.slow
def test_a_softmax_checkpoint_becomes_an_inline_model(digit_scenes: Path, tmp_path: Path) -> None:
    config = tmp_path / 'softmax.py'
    config.write_text(
        f"_base_ = '{ROOT / 'configs/digits_quick/inline-pvt-nano_digits.py'}'\n"
        "model = dict(backbone=dict(mixers=dict(type='Softmax', sr_ratio=1)))\n"
        'train_dataloader = dict(num_workers=0, persistent_workers=False)\n'
    )
    teacher, _ = build_model(load_config(config))
    torch.save({'state_dict': teacher.state_dict()}, tmp_path / 'teacher.pth')
    done = run_tool(
        'tools/linearize.py', config, '--from', tmp_path / 'teacher.pth', '--epochs', 1, '--match-epochs', 1,
        '--work-dir', tmp_path / 'out', '--data-root', digit_scenes.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    checkpoint = Path((tmp_path / 'out/distill/last_checkpoint').read_text().strip())
    weights = torch.load(checkpoint, weights_only=False)['state_dict']
    student, _ = build_model(load_config(tmp_path / 'out/student.py'), checkpoint)
    assert set(weights) == set(student.state_dict())
    matched = torch.load((tmp_path / 'out/match/last_checkpoint').read_text().strip(), weights_only=False)
    for name, tensor in matched['state_dict'].items():
        if '.mixer.' not in name and name in teacher.state_dict():
            torch.testing.assert_close(tensor, teacher.state_dict()[name])
    changed = [name for name, tensor in weights.items() if not tensor.equal(matched['state_dict'][name])]
    assert any('.mlp.' in name for name in changed)
