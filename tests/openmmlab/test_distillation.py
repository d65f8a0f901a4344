"""Distillation: losses, stored logits, and a student whose checkpoints do not mention the teacher."""

import importlib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.model import BaseModel
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData, PixelData

from inline.openmmlab.patches import apply_patches

apply_patches()

from mmengine.registry import MODELS  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402

from inline.engine.config import load_config  # noqa: E402
from inline.openmmlab.distillation import (  # noqa: E402
    Distiller,
    FeatureLoss,
    LogitLoss,
    Recording,
    StoredLogits,
    relative_error,
)
from inline.utils.errors import UserError  # noqa: E402
from tests.checkpoints.softmax_sources import CLASSES, randomize, timm_swin  # noqa: E402

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


def test_mixers_that_need_the_input_before_the_norm_are_matched() -> None:
    student, teacher = deepcopy(STUDENT), deepcopy(STUDENT)
    for config, mixer in ((student, 'InLine'), (teacher, 'Softmax')):
        config['backbone'] |= {'type': 'inline.InLineCSwin', 'mixers': {'type': mixer}}
        config['backbone']['arch']['num_heads'] = (2, 2)
    teacher = MODELS.build(teacher)
    distiller = Distiller(student, teacher, [{'type': 'inline.MixerLoss'}], label_weight=0)
    inputs, errors = torch.rand(2, 3, 32, 32), []
    for stage, theirs in zip(distiller.student.backbone.stages, teacher.backbone.stages, strict=True):
        block = theirs.blocks[0]
        seen: list[Any] = []
        hook = block.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args))
        teacher.extract_feat(inputs)
        hook.remove()
        ((x, hw),) = seen
        ours, output = stage.blocks[0].mixer(block.norm1(x), hw, x), block.mixer(block.norm1(x), hw)
        errors.append(((ours - output) ** 2).mean() / (output**2).mean())
    loss = distiller(inputs, make_samples(2), mode='loss')['loss_distill']
    torch.testing.assert_close(loss, torch.stack(errors).mean())


class Images(torch.nn.Module):
    """A classifier as in timm: it takes images only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None) -> torch.Tensor:
        assert attn_mask is None
        return self.layer(x.mean((2, 3)))


def test_a_module_of_another_library_is_called_with_images() -> None:
    teacher, inputs = Images(), torch.rand(2, 3, 32, 32)
    distiller = make_distiller(teacher)
    losses = distiller(inputs, make_samples(2), mode='loss')
    expected = logit_loss(LogitLoss(0.5, 2.0), distiller.student(inputs), teacher(inputs))
    torch.testing.assert_close(losses['loss_distill'], expected)
    for loss in ('FeatureLoss', 'MixerLoss'):
        with pytest.raises(UserError, match='need a teacher of mmpretrain, mmdet or mmseg: it is a Images'):
            Distiller(deepcopy(STUDENT), teacher, [{'type': f'inline.{loss}'}])


def test_the_weights_of_a_teacher_are_loaded_or_missed(tmp_path: Path) -> None:
    file = str(tmp_path / 'teacher.pth')
    torch.save({'state_dict': MODELS.build(deepcopy(STUDENT)).state_dict()}, file)
    expected = torch.load(file)['state_dict']['head.fc.weight']
    init_cfg = {'type': 'Pretrained', 'checkpoint': file}
    for config, checkpoint in ((STUDENT, file), ({**STUDENT, 'init_cfg': init_cfg}, None)):
        distiller = make_distiller(deepcopy(config), teacher_checkpoint=checkpoint)
        assert distiller._teacher[0].head.fc.weight.equal(expected)
    pretrained = {**STUDENT['backbone'], 'init_cfg': {**init_cfg, 'prefix': 'backbone.'}}
    for config in (STUDENT, {**STUDENT, 'backbone': pretrained}):
        with pytest.raises(UserError, match="'ImageClassifier' has no weights for its head: give teacher_ch"):
            make_distiller(deepcopy(config))
    features = [{'type': 'inline.FeatureLoss'}]
    distiller = Distiller(deepcopy(STUDENT), {**deepcopy(STUDENT), 'backbone': pretrained}, features)
    expected = torch.load(file)['state_dict']['backbone.stages.0.blocks.0.mlp.fc1.weight']
    assert distiller._teacher[0].backbone.stages[0].blocks[0].mlp.fc1.weight.equal(expected)
    with pytest.raises(UserError, match="'ImageClassifier' has no weights: give teacher_checkpoint"):
        Distiller(deepcopy(STUDENT), deepcopy(STUDENT), features)


def test_a_teacher_that_loads_its_weights_when_built_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As models of timm do, whose init_weights draws random ones."""
    drawn: list[bool] = []

    class Loaded(BaseModel):
        def __init__(self, pretrained: bool) -> None:
            super().__init__()
            assert pretrained

        def forward(self, *_: Any) -> None:
            """Not called."""

        def init_weights(self) -> None:
            drawn.append(True)

    monkeypatch.setitem(MODELS.module_dict, 'LoadedTeacher', Loaded)
    distiller = make_distiller({'type': 'LoadedTeacher', 'pretrained': True})
    assert isinstance(distiller._teacher[0], Loaded)
    assert not drawn
    # A class of one's own has to load its weights itself.
    monkeypatch.setitem(MODELS.module_dict, 'OwnTeacher', Images)
    assert isinstance(make_distiller({'type': 'OwnTeacher'})._teacher[0], Images)


def test_a_teacher_loads_softmax_weights_of_timm(tmp_path: Path) -> None:
    source = randomize(timm_swin())
    file = str(tmp_path / 'swin.pth')
    torch.save(source.state_dict(), file)

    def make_config(num_heads: tuple[int, ...], **options: Any) -> dict[str, Any]:
        arch = {'embed_dims': (8, 16, 32, 64), 'depths': (2, 2, 3, 1), 'num_heads': num_heads}
        backbone = {'type': 'inline.InLineSwin', 'arch': arch, 'img_size': 128, 'out_indices': (3,)}
        head = {'type': 'LinearClsHead', 'num_classes': CLASSES, 'in_channels': 64}
        return {**STUDENT, 'backbone': {**backbone, **options}, 'head': head}

    def make(num_heads: tuple[int, ...]) -> Distiller:
        teacher = make_config(num_heads, mixers={'type': 'Softmax'})
        losses = [{'type': 'inline.LogitLoss'}]
        return Distiller(make_config(num_heads), teacher, losses, teacher_checkpoint=file)

    inputs = torch.rand(2, 3, 128, 128)
    teacher = make((1, 2, 4, 8))._teacher[0]
    torch.testing.assert_close(teacher(inputs), source(inputs), rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match='set num_heads in its arch to'):
        make((2, 2, 4, 8))


def detection_sample() -> Any:
    from mmdet.structures import DetDataSample

    instances = InstanceData(bboxes=torch.tensor([[8.0, 8.0, 40.0, 48.0]]), labels=torch.tensor([1]))
    return DetDataSample(gt_instances=instances, metainfo=META)


def segmentation_sample() -> Any:
    from mmseg.structures import SegDataSample

    return SegDataSample(gt_sem_seg=PixelData(data=torch.zeros(1, 64, 64).long()), metainfo=META)


META = dict.fromkeys(('img_shape', 'pad_shape', 'batch_input_shape'), (64, 64)) | {'scale_factor': (1, 1)}
DENSE = {
    'detector': ('retinanet_inline-pvt-nano_digits', 'mmdet', detection_sample),
    'segmentor': ('semantic-fpn_inline-pvt-nano_digits', 'mmseg', segmentation_sample),
}


@pytest.mark.parametrize(('config', 'toolbox', 'make_sample'), DENSE.values(), ids=DENSE)
def test_features_of_detectors_and_segmentors_are_distilled(
    config: str, toolbox: str, make_sample: Callable[[], Any]
) -> None:
    importlib.import_module(f'{toolbox}.models')
    init_default_scope(toolbox)
    cfg = load_config(f'configs/digits_quick/{config}.py')
    softmax = deepcopy(cfg.model)
    softmax.backbone.mixers = {'type': 'Softmax'}
    teacher = MODELS.build(softmax)
    distiller = Distiller(deepcopy(cfg.model), teacher, [{'type': 'inline.FeatureLoss'}], label_weight=0.5)
    student, images, samples = distiller.student, torch.rand(2, 3, 64, 64), [make_sample(), make_sample()]
    with torch.no_grad():
        pairs = zip(student.eval().backbone(images), teacher.backbone(images), strict=True)
        expected = torch.stack([relative_error(*pair) for pair in pairs]).mean()
    losses = distiller(images, samples, mode='loss')
    torch.testing.assert_close(losses['loss_distill'], expected)
    assert len(losses) > 1
    losses['loss_distill'].backward()
    assert student.backbone.stages[0].blocks[0].mixer.qkv.weight.grad.any()


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
