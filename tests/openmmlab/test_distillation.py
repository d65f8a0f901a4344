"""Distillation: losses, stored logits, and a student whose checkpoints do not mention the teacher."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.registry import init_default_scope

from inline.openmmlab.patches import apply_patches

apply_patches()

from mmengine.registry import MODELS  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402

from inline.openmmlab.distillation import (  # noqa: E402
    Distiller,
    FeatureLoss,
    LogitLoss,
    Recording,
    StoredLogits,
    relative_error,
)
from inline.utils.errors import UserError  # noqa: E402

STUDENT = {
    'type': 'ImageClassifier',
    'backbone': {
        'type': 'inline.InLinePVT',
        'arch': {'embed_dims': (16, 16), 'depths': (1, 1), 'num_heads': (1, 1), 'mlp_ratios': (4, 4)},
        'img_size': 32,
        'out_indices': (1,),
    },
    'neck': {'type': 'GlobalAveragePooling'},
    'head': {'type': 'LinearClsHead', 'num_classes': 3, 'in_channels': 16},
    'data_preprocessor': {'mean': [0, 0, 0], 'std': [255, 255, 255]},
}


@pytest.fixture(autouse=True)
def scope() -> None:
    init_default_scope('mmpretrain')


def make_samples(count: int) -> list[DataSample]:
    return [
        DataSample(metainfo={'sample_idx': index, 'flip': index % 2 == 1}).set_gt_label(index % 3)
        for index in range(count)
    ]


def recording(**values: Any) -> Recording:
    result = Recording()
    vars(result).update(values)
    return result


def logit_loss(loss: LogitLoss, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return loss(recording(student_logits=logits, teacher_logits=target))


def softmax_config() -> dict[str, Any]:
    config = deepcopy(STUDENT)
    config['backbone']['mixers'] = {'type': 'Softmax', 'sr_ratio': 1}
    return config


def make_distiller(teacher: Any, **options: Any) -> Distiller:
    loss = {'type': 'inline.LogitLoss', 'weight': 0.5, 'temperature': 2.0}
    return Distiller(deepcopy(STUDENT), teacher, [loss], **options)


def test_the_logit_loss_is_the_divergence_of_softened_probabilities() -> None:
    logits, target = torch.randn(2, 4, 5, dtype=torch.float64)
    temperature, weight = 3.0, 0.7
    p = torch.softmax(target / temperature, 1)
    q = torch.softmax(logits / temperature, 1)
    expected = weight * temperature**2 * (p * (p / q).log()).sum(1).mean()
    torch.testing.assert_close(logit_loss(LogitLoss(weight, temperature), logits, target), expected)
    assert logit_loss(LogitLoss(), logits, logits) == pytest.approx(0, abs=1e-12)


def test_invalid_losses_are_named() -> None:
    with pytest.raises(UserError, match='temperature=0 of LogitLoss: must be greater than 0'):
        LogitLoss(temperature=0)
    with pytest.raises(UserError, match=r'logits of shape \(2, 1000\), the student \(2, 200\)'):
        logit_loss(LogitLoss(), torch.zeros(2, 200), torch.zeros(2, 1000))


def test_the_distiller_adds_the_losses_of_labels_and_teacher() -> None:
    target = torch.randn(4, 3)
    distiller = make_distiller(lambda inputs, samples: target, label_weight=0.25)  # noqa: ARG005
    inputs, samples = torch.rand(4, 3, 32, 32), make_samples(4)
    losses = distiller(inputs, samples, mode='loss')
    student = distiller.student
    torch.testing.assert_close(losses['loss'], 0.25 * student(inputs, samples, mode='loss')['loss'])
    torch.testing.assert_close(
        losses['loss_distill'], logit_loss(LogitLoss(0.5, 2.0), student(inputs), target)
    )
    sum(losses.values()).backward()
    assert all(parameter.grad is not None for parameter in student.parameters())


def test_predictions_and_checkpoints_are_those_of_the_student() -> None:
    teacher = MODELS.build(deepcopy(STUDENT))
    # A classifier is called with inputs and samples, and returns logits for mode 'tensor'.
    distiller = make_distiller(teacher)
    distiller.train()
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    student = MODELS.build(deepcopy(STUDENT))
    student.load_state_dict(distiller.state_dict(), strict=True)
    inputs, samples = torch.rand(2, 3, 32, 32), make_samples(2)
    predictions = [model.eval()(inputs, samples, mode='predict') for model in (distiller, student)]
    for one, other in zip(*predictions, strict=True):
        torch.testing.assert_close(one.pred_score, other.pred_score)
    other = MODELS.build(deepcopy(STUDENT))
    distiller.load_state_dict(other.state_dict())
    torch.testing.assert_close(distiller(inputs), other(inputs))


def test_the_relative_error_is_one_for_an_output_of_zero() -> None:
    target = torch.randn(2, 5, 3, dtype=torch.float64)
    assert relative_error(torch.zeros_like(target), target) == pytest.approx(1)
    assert relative_error(target * 1.1, target) == pytest.approx(0.01)


def test_the_feature_loss_averages_over_the_outputs_of_the_backbone() -> None:
    theirs = (torch.randn(1, 2, 4, 4), torch.randn(1, 3, 2, 2))
    ours = (theirs[0] * 1.5, theirs[1] * 0.5)
    loss = FeatureLoss(weight=2.0)(recording(student_features=ours, teacher_features=theirs))
    assert loss == pytest.approx(2 * 0.25)
    with pytest.raises(UserError, match=r'feature maps of the student .* differ'):
        FeatureLoss()(recording(student_features=ours[:1], teacher_features=theirs))


def test_mixers_are_matched_on_the_teachers_activations() -> None:
    teacher = MODELS.build(softmax_config())
    losses = [{'type': 'inline.MixerLoss'}]
    distiller = Distiller(deepcopy(STUDENT), teacher, losses, label_weight=0, train_only='mixers')
    inputs = torch.rand(2, 3, 32, 32)
    mixers = [name for name, _ in teacher.named_modules() if name.endswith('.mixer')]
    assert len(mixers) == 2
    # Naive: the input and output of every softmax mixer, then the student's mixer on that input.
    calls: dict[str, Any] = {}
    for name in mixers:
        teacher.get_submodule(name).register_forward_hook(
            lambda _, args, output, name=name: calls.update({name: (args, output)})
        )
    teacher.extract_feat(inputs)
    errors = []
    for name in mixers:
        args, output = calls[name]
        ours = distiller.student.get_submodule(name)(*args)
        errors.append(((ours - output) ** 2).mean() / (output**2).mean())
    losses = distiller(inputs, make_samples(2), mode='loss')
    assert list(losses) == ['loss_distill']
    torch.testing.assert_close(losses['loss_distill'], torch.stack(errors).mean())
    losses['loss_distill'].backward()
    with_gradient = {
        name for name, parameter in distiller.student.named_parameters() if parameter.requires_grad
    }
    assert with_gradient
    assert all('.mixer.' in name for name in with_gradient)
    assert all(distiller.student.get_parameter(name).grad is not None for name in with_gradient)


def test_a_student_can_start_from_the_teachers_weights_and_needs_other_mixers(tmp_path: Path) -> None:
    teacher = MODELS.build(softmax_config())
    torch.save({'state_dict': teacher.state_dict()}, tmp_path / 'teacher.pth')
    distiller = Distiller(
        deepcopy(STUDENT),
        softmax_config(),
        [{'type': 'inline.LogitLoss'}],
        teacher_checkpoint=str(tmp_path / 'teacher.pth'),
        from_teacher=True,
    )
    distiller.init_weights()
    expected = teacher.state_dict()
    common = [name for name in distiller.state_dict() if name in expected]
    assert any('mlp.fc1.weight' in name for name in common)
    assert any('qkv.weight' in name for name in common)
    for name in common:
        torch.testing.assert_close(distiller.state_dict()[name], expected[name])
    with pytest.raises(UserError, match='no token mixer of the student replaces one of the teacher'):
        Distiller(softmax_config(), teacher, [{'type': 'inline.MixerLoss'}])
    with pytest.raises(UserError, match="train_only='heads': must be 'mixers' or None"):
        Distiller(deepcopy(STUDENT), teacher, [{'type': 'inline.LogitLoss'}], train_only='heads')


def test_the_teacher_gets_images_in_its_own_normalisation() -> None:
    seen = []

    def teacher(inputs: torch.Tensor, samples: Any) -> torch.Tensor:  # noqa: ARG001
        seen.append(inputs)
        return torch.zeros(len(inputs), 3)

    distiller = make_distiller(teacher, teacher_mean=[127.0] * 3, teacher_std=[128.0, 64.0, 128.0])
    pixels = torch.randint(0, 256, (2, 3, 32, 32)).float()
    # The student's normalisation is pixel / 255.
    distiller(pixels / 255, make_samples(2), mode='loss')
    expected = (pixels - 127) / torch.tensor([128.0, 64.0, 128.0]).view(3, 1, 1)
    torch.testing.assert_close(seen[0], expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError, match='teacher_mean and teacher_std belong together'):
        make_distiller(teacher, teacher_mean=[127.0] * 3)


def test_stored_logits_are_looked_up_by_index_and_flip(tmp_path: Path) -> None:
    logits = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float16)
    np.save(tmp_path / 'logits.npy', logits)
    found = StoredLogits(tmp_path / 'logits.npy')(torch.zeros(4), make_samples(4))
    expected = np.stack([logits[0, 0], logits[1, 1], logits[0, 2], logits[1, 3]]).astype(np.float32)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_stored_logits_refuse_what_they_do_not_hold(tmp_path: Path) -> None:
    file = tmp_path / 'logits.npy'
    with pytest.raises(UserError, match='cannot be read'):
        StoredLogits(file)
    np.save(file, np.zeros((4, 3)))
    with pytest.raises(UserError, match=r'shape \(4, 3\): must be \(1 or 2 views'):
        StoredLogits(file)
    np.save(file, np.zeros((1, 2, 3)))
    with pytest.raises(UserError, match='sample 3 has no teacher logits: they were stored for 2 images'):
        StoredLogits(file)(torch.zeros(1), make_samples(4))
    np.save(file, np.zeros((1, 4, 3)))
    with pytest.raises(UserError, match='no view of flipped images'):
        StoredLogits(file)(torch.zeros(1), make_samples(4))
