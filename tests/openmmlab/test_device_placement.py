"""Backbones and whole models without a GPU: every tensor on the model's device, no host synchronisation.

Backbones alone run on the meta device in tests/hub/test_stock_tools.py.
"""

from typing import Any

import pytest
import torch
from mmengine import ConfigDict
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData, PixelData
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from inline.models.mixers import MIXERS
from tests.models.families import FAMILIES, PYRAMID, build

SIZE = (64, 96)
BACKBONE = {'type': 'inline.InLinePVT', 'arch': PYRAMID, 'img_size': 64, 'drop_path_rate': 0.1}
NECK = {'type': 'FPN', 'in_channels': [8, 16, 32, 64], 'out_channels': 16}
META = {'ori_shape': SIZE, 'img_shape': SIZE, 'pad_shape': SIZE, 'scale_factor': (1.0, 1.0)}
# Operators that read a value of a GPU tensor, or whose output shape depends on one: the host waits for them.
SYNCHRONIZING = {
    '_local_scalar_dense',
    'nonzero',
    'masked_select',
    'is_nonzero',
    'equal',
    'repeat_interleave',
}
SYNCHRONIZING |= {'_unique2', 'unique_dim', 'unique_consecutive', 'bincount'}


class NoSynchronization(TorchDispatchMode):
    """Raise if an operator would make the host wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix('aten::')
        # repeat_interleave with a tensor of repeats has an output of unknown length.
        if name in SYNCHRONIZING or (name == '_to_copy' and _moves(args[0], kwargs or {})):
            raise RuntimeError(f'{func} waits for the device')
        indices = args[1] if name in ('index', 'index_put', 'index_put_', '_index_put_impl_') else ()
        if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
            raise RuntimeError(f'{func} with a mask waits for the device')
        return func(*args, **(kwargs or {}))


def _moves(x: Tensor, options: dict[str, Any]) -> bool:
    device = options.get('device')
    return device is not None and torch.device(device).type != x.device.type


@pytest.mark.parametrize(
    'read',
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.to('meta'),
        lambda x: x.masked_select(x > 0),
    ],
)
def test_synchronization_is_detected(read: Any) -> None:
    with NoSynchronization(), pytest.raises(RuntimeError, match='waits for the device'):
        read(torch.ones(3))


@pytest.mark.parametrize('family', FAMILIES)
@pytest.mark.parametrize('img_size', [(64, 96), (75, 130)])
def test_backbones_never_wait_for_the_device(family: str, img_size: tuple[int, int]) -> None:
    model = build(family, drop_path_rate=0.1).train()
    with NoSynchronization():
        outs = model(torch.randn(2, 3, *img_size))
        sum(out.square().mean() for out in outs).backward()
        with torch.no_grad():
            model.eval()(torch.randn(1, 3, *img_size))
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize('name', sorted(MIXERS))
def test_mixers_never_wait_for_the_device(name: str) -> None:
    model = build('InLinePVT', mixers={'type': name}).train()
    with NoSynchronization():
        sum(out.square().mean() for out in model(torch.randn(2, 3, *SIZE))).backward()


def images() -> Tensor:
    return torch.empty(2, 3, *SIZE, device='meta')


def check_gradients(model: nn.Module) -> None:
    missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.is_meta]
    assert not missing


def test_classifier_on_the_meta_device() -> None:
    from mmpretrain.registry import MODELS
    from mmpretrain.structures import DataSample

    init_default_scope('mmpretrain')
    head = {'type': 'LinearClsHead', 'num_classes': 5, 'in_channels': 64}
    config = {'type': 'ImageClassifier', 'backbone': {**BACKBONE, 'out_indices': (3,)}, 'head': head}
    model = MODELS.build({**config, 'neck': {'type': 'GlobalAveragePooling'}}).to('meta')
    samples = [DataSample().set_gt_label(torch.tensor([1], device='meta')) for _ in range(2)]
    losses = model.loss(images(), samples)
    assert list(losses) == ['loss']
    assert losses['loss'].is_meta
    losses['loss'].backward()
    check_gradients(model)
    predicted = model.predict(images(), samples)
    assert [sample.pred_score.is_meta for sample in predicted] == [True, True]


def test_segmentor_on_the_meta_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """mmseg's accuracy, which is logged with the loss, selects pixels by a mask and is left out."""
    import mmseg.models  # noqa: F401 (registers them)
    from mmseg.registry import MODELS
    from mmseg.structures import SegDataSample

    init_default_scope('mmseg')
    monkeypatch.setattr('mmseg.models.decode_heads.decode_head.accuracy', lambda *_, **__: torch.zeros(1))
    head = {'type': 'FPNHead', 'in_channels': [16] * 4, 'in_index': [0, 1, 2, 3], 'channels': 16}
    head |= {'feature_strides': [4, 8, 16, 32], 'num_classes': 5, 'norm_cfg': {'type': 'BN'}}
    config = {'type': 'EncoderDecoder', 'backbone': BACKBONE, 'neck': {**NECK, 'num_outs': 4}}
    model = MODELS.build(
        {**config, 'decode_head': head, 'train_cfg': {}, 'test_cfg': ConfigDict(mode='whole')}
    ).to('meta')
    labels = PixelData(data=torch.empty(1, *SIZE, dtype=torch.long, device='meta'))
    samples = [SegDataSample(gt_sem_seg=labels, metainfo={**META, 'padding_size': [0] * 4}) for _ in range(2)]
    loss = model.loss(images(), samples)['decode.loss_ce']
    assert loss.is_meta
    loss.backward()
    check_gradients(model)
    predicted = model.eval().predict(images(), samples)
    assert [sample.seg_logits.data.shape for sample in predicted] == [(5, *SIZE)] * 2
    assert all(sample.pred_sem_seg.data.is_meta for sample in predicted)


def test_detector_on_the_meta_device() -> None:
    """Backbone, neck and head, forward and backward.

    mmdet's assignment of boxes to anchors and its selection of boxes by score read values and have results of
    unknown length, so its ``loss`` and ``predict`` run on no device without values. The features do.
    """
    import mmdet.models  # noqa: F401 (registers them)
    from mmdet.registry import MODELS
    from mmdet.structures import DetDataSample

    init_default_scope('mmdet')
    anchors = {'type': 'AnchorGenerator', 'octave_base_scale': 4, 'scales_per_octave': 3}
    anchors |= {'ratios': [0.5, 1, 2], 'strides': [4, 8, 16, 32, 64]}
    head = {'type': 'RetinaHead', 'num_classes': 5, 'in_channels': 16, 'feat_channels': 16}
    head |= {'stacked_convs': 1, 'anchor_generator': anchors, 'bbox_coder': {'type': 'DeltaXYWHBBoxCoder'}}
    train = {'assigner': {'type': 'MaxIoUAssigner', 'pos_iou_thr': 0.5, 'neg_iou_thr': 0.4}}
    train |= {'sampler': {'type': 'PseudoSampler'}, 'allowed_border': -1, 'pos_weight': -1}
    config = {'type': 'RetinaNet', 'backbone': BACKBONE, 'neck': {**NECK, 'num_outs': 5}, 'bbox_head': head}
    model = MODELS.build({**config, 'train_cfg': train, 'test_cfg': {}}).to('meta')
    scores, boxes = model.bbox_head(model.extract_feat(images()))
    assert [score.shape for score in scores[:2]] == [(2, 9 * 5, 16, 24), (2, 9 * 5, 8, 12)]
    assert all(out.is_meta for out in (*scores, *boxes))
    sum(out.sum() for out in (*scores, *boxes)).backward()
    check_gradients(model)
    # What the docstring says about mmdet: if this no longer raises, the test can call loss.
    instances = InstanceData(
        bboxes=torch.empty(2, 4, device='meta'), labels=torch.empty(2, dtype=torch.long, device='meta')
    )
    samples = [DetDataSample(gt_instances=instances, metainfo=META) for _ in range(2)]
    with pytest.raises((RuntimeError, NotImplementedError), match='meta'):
        model.loss(images(), samples)
