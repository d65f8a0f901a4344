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

from inline.openmmlab.distillation import Distiller, LogitLoss, StoredLogits  # noqa: E402
from inline.utils.errors import UserError  # noqa: E402

STUDENT = {
    'type': 'ImageClassifier',
    'backbone': {
        'type': 'inline.InLinePVT',
        'arch': {'embed_dims': (8, 8), 'depths': (1, 1), 'num_heads': (1, 1), 'mlp_ratios': (1, 1)},
        'img_size': 32,
        'out_indices': (1,),
    },
    'neck': {'type': 'GlobalAveragePooling'},
    'head': {'type': 'LinearClsHead', 'num_classes': 3, 'in_channels': 8},
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


def make_distiller(teacher: Any, **options: Any) -> Distiller:
    loss = {'type': 'inline.LogitLoss', 'weight': 0.5, 'temperature': 2.0}
    return Distiller(deepcopy(STUDENT), teacher, [loss], **options)


def test_the_logit_loss_is_the_divergence_of_softened_probabilities() -> None:
    logits, target = torch.randn(2, 4, 5, dtype=torch.float64)
    temperature, weight = 3.0, 0.7
    p = torch.softmax(target / temperature, 1)
    q = torch.softmax(logits / temperature, 1)
    expected = weight * temperature**2 * (p * (p / q).log()).sum(1).mean()
    torch.testing.assert_close(LogitLoss(weight, temperature)(logits, target), expected)
    assert LogitLoss()(logits, logits) == pytest.approx(0, abs=1e-12)


def test_invalid_losses_are_named() -> None:
    with pytest.raises(UserError, match='temperature=0 of LogitLoss: must be greater than 0'):
        LogitLoss(temperature=0)
    with pytest.raises(UserError, match=r'logits of shape \(2, 1000\), the student \(2, 200\)'):
        LogitLoss()(torch.zeros(2, 200), torch.zeros(2, 1000))


def test_the_distiller_adds_the_losses_of_labels_and_teacher() -> None:
    target = torch.randn(4, 3)
    distiller = make_distiller(lambda inputs, samples: target, label_weight=0.25)  # noqa: ARG005
    inputs, samples = torch.rand(4, 3, 32, 32), make_samples(4)
    losses = distiller(inputs, samples, mode='loss')
    student = distiller.student
    torch.testing.assert_close(losses['loss'], 0.25 * student(inputs, samples, mode='loss')['loss'])
    torch.testing.assert_close(losses['loss_distill'], LogitLoss(0.5, 2.0)(student(inputs), target))
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
