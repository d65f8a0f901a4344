"""Flags of tools/train.py and tools/test.py."""

from argparse import Namespace
from pathlib import Path

import pytest
from mmengine.config import Config

from inline.engine.launch import (
    apply_training_flags,
    build_runner,
    draw_predictions,
    drop_pretrained,
    save_predictions,
    scale_lr,
    use_amp,
)
from inline.utils.errors import UserError


def make_config(**settings: object) -> Config:
    model = {'backbone': {'type': 'inline.InLinePVT'}}
    return Config({'model': model, 'optim_wrapper': {'type': 'OptimWrapper'}, **settings})


@pytest.mark.parametrize(
    ('supported', 'dtype', 'loss_scale'), [(True, 'bfloat16', 1.0), (False, 'float16', 'dynamic')]
)
def test_amp_uses_mmengine_on_a_gpu(
    supported: bool, dtype: str, loss_scale: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bfloat16 where the GPU computes in it."""
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    monkeypatch.setattr('torch.cuda.is_bf16_supported', lambda **_: supported)
    cfg = make_config()
    use_amp(cfg)
    assert cfg.optim_wrapper == {'type': 'AmpOptimWrapper', 'dtype': dtype, 'loss_scale': loss_scale}
    assert 'autocast' not in cfg.model.backbone
    cfg = make_config(optim_wrapper={'type': 'OptimWrapper', 'dtype': 'float16', 'loss_scale': 512.0})
    use_amp(cfg)
    assert (cfg.optim_wrapper.dtype, cfg.optim_wrapper.loss_scale) == ('float16', 512.0)


@pytest.mark.parametrize('supported', [True, False])
def test_amp_of_a_detector_on_a_gpu(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only our backbones use bfloat16. mmcv's operators support float16, which is used otherwise."""
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    monkeypatch.setattr('torch.cuda.is_bf16_supported', lambda **_: supported)
    cfg = make_config(default_scope='mmdet')
    use_amp(cfg)
    in_backbone = cfg.model.backbone.get('autocast')
    wrapper = cfg.optim_wrapper
    expected = ('bfloat16', 'OptimWrapper', None) if supported else (None, 'AmpOptimWrapper', 'float16')
    assert (in_backbone, wrapper.type, wrapper.get('dtype')) == expected
    cfg = make_config(default_scope='mmdet')
    cfg.model.backbone.type = 'ResNet'
    use_amp(cfg)
    assert (cfg.optim_wrapper.dtype, cfg.optim_wrapper.loss_scale) == ('float16', 'dynamic')


def test_amp_uses_bfloat16_in_the_backbone_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    cfg = make_config()
    use_amp(cfg)
    assert cfg.model.backbone.autocast == 'bfloat16'
    assert cfg.optim_wrapper.type == 'OptimWrapper'
    cfg.model.backbone.type = 'ResNet'
    with pytest.raises(UserError, match="the config has 'ResNet'"):
        use_amp(cfg)


def test_amp_and_pretrained_weights_apply_to_the_student_of_a_distiller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    student, teacher = ({'backbone': {'type': 'inline.InLinePVT'}} for _ in range(2))
    cfg = Config({'model': {'type': 'inline.Distiller', 'student': student, 'teacher': teacher}})
    flags = {'no_validate': False, 'amp': True, 'auto_scale_lr': False, 'resume': None}
    apply_training_flags(cfg, Namespace(**flags, pretrained='inline_pvt_micro'))
    backbone = cfg.model.student.backbone
    assert (backbone.autocast, backbone.init_cfg.checkpoint) == ('bfloat16', 'inline_pvt_micro')
    teacher = cfg.model.teacher
    assert set(teacher.backbone) == {'type'}
    teacher.backbone.init_cfg = {'type': 'Pretrained', 'checkpoint': 'teacher.pth'}
    drop_pretrained(cfg.model)
    assert (backbone.init_cfg, teacher.backbone.init_cfg.checkpoint) == (None, 'teacher.pth')
    with pytest.raises(UserError, match="model 'ImageClassifier' has no backbone"):
        use_amp(Config({'model': {'type': 'ImageClassifier'}}))


def test_scaling_the_learning_rate_needs_a_base_batch_size() -> None:
    cfg = make_config(auto_scale_lr={'base_batch_size': 16, 'enable': False})
    scale_lr(cfg)
    assert cfg.auto_scale_lr.enable
    with pytest.raises(UserError, match='base_batch_size'):
        scale_lr(make_config())


def test_a_work_directory_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / 'notes').write_text('mine')
    with pytest.raises(UserError, match=r"^--work-dir '.*notes': cannot create this folder: File exists$"):
        build_runner(make_config(work_dir=str(tmp_path / 'notes')))
    assert (tmp_path / 'notes').read_text() == 'mine'


@pytest.mark.parametrize(
    ('toolbox', 'metric'),
    [('mmpretrain', 'DumpResults'), ('mmseg', 'DumpResults'), ('mmdet', 'DumpDetResults')],
)
def test_predictions_are_written_to_a_pickle(toolbox: str, metric: str) -> None:
    cfg = make_config(default_scope=toolbox, test_evaluator={'type': 'Metric'})
    with pytest.raises(UserError, match=r"^--out 'all\.json': .* end in \.pkl$"):
        save_predictions(cfg, 'all.json')
    save_predictions(cfg, 'all.pkl')
    assert [evaluator.type for evaluator in cfg.test_evaluator] == ['Metric', metric]


def test_testing_needs_no_pretrained_weights() -> None:
    cfg = make_config()
    cfg.model.backbone.init_cfg = {'type': 'Pretrained', 'checkpoint': 'gone.pth'}
    cfg.model.init_cfg = {'type': 'Xavier'}
    drop_pretrained(cfg.model)
    assert cfg.model.backbone.init_cfg is None
    assert cfg.model.init_cfg.type == 'Xavier'


@pytest.mark.parametrize('kind', [list, tuple])
def test_pretrained_weights_in_a_list_are_dropped(kind: type) -> None:
    cfg = make_config()
    pretrained = {'type': 'Pretrained', 'checkpoint': 'gone.pth'}
    cfg.model.backbone.init_cfg = kind([pretrained, {'type': 'Constant', 'val': 1}])
    drop_pretrained(cfg.model)
    assert [dict(one) for one in cfg.model.backbone.init_cfg] == [{'type': 'Constant', 'val': 1}]


def test_pretrained_weights_of_inner_modules_are_dropped() -> None:
    cfg = make_config()
    cfg.model.heads = [
        {'inner': {'init_cfg': {'type': 'Pretrained', 'checkpoint': 'gone.pth'}}, 'init_cfg': []}
    ]
    drop_pretrained(cfg.model)
    assert cfg.model.heads[0].inner.init_cfg is None
    assert cfg.model.heads[0].init_cfg == []


RESUMED = {'resume': True, 'load_from': 'old.pth'}


@pytest.mark.parametrize(
    ('flag', 'settings', 'expected', 'load_from'),
    [
        (None, {}, None, None),
        (None, {'load_from': 'weights.pth'}, None, 'weights.pth'),
        ('auto', {'load_from': 'weights.pth'}, 'auto', 'weights.pth'),
        ('iter_2.pth', {}, 'iter_2.pth', None),
        (None, {'resume': True}, 'auto', None),
        (None, RESUMED, 'old.pth', None),
        ('auto', RESUMED, 'auto', None),
    ],
)
def test_what_to_resume_from(
    flag: str | None, settings: dict, expected: str | None, load_from: str | None
) -> None:
    cfg = make_config(**settings)
    flags = {'no_validate': False, 'amp': False, 'auto_scale_lr': False, 'pretrained': None}
    assert apply_training_flags(cfg, Namespace(resume=flag, **flags)) == expected
    assert cfg.get('load_from') == load_from
    assert not cfg.get('resume')


@pytest.mark.parametrize(
    ('toolbox', 'settings'),
    [
        ('mmpretrain', {'enable': True, 'out_dir': '/drawn'}),
        ('mmdet', {'draw': True, 'test_out_dir': '/drawn'}),
        ('mmseg', {'draw': True}),
    ],
)
def test_drawing_uses_the_hook_of_the_toolbox(toolbox: str, settings: dict) -> None:
    hooks = {'visualization': {'type': 'SomeHook'}}
    cfg = make_config(default_scope=toolbox, default_hooks=hooks, visualizer={'type': 'SomeVisualizer'})
    draw_predictions(cfg, '/drawn')
    hook = cfg.default_hooks.visualization
    assert hook.type == 'SomeHook'
    assert {key: hook[key] for key in settings} == settings
    if toolbox == 'mmseg':
        assert cfg.visualizer.save_dir == '/drawn'
