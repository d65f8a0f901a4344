from pathlib import Path

import pytest
from mmengine.config import Config

from inline.engine.launch import (
    build_runner,
    draw_predictions,
    drop_pretrained,
    keep_predictions,
    scale_lr,
    use_amp,
)
from inline.errors import UserError


def make_config(**settings: object) -> Config:
    model = {'backbone': {'type': 'inline.InLinePVT'}}
    return Config({'model': model, 'optim_wrapper': {'type': 'OptimWrapper'}, **settings})


def test_amp_is_mmengines_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    cfg = make_config()
    use_amp(cfg)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert cfg.optim_wrapper.loss_scale == 'dynamic'
    assert 'autocast' not in cfg.model.backbone


def test_amp_is_bfloat16_in_our_backbone_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    cfg = make_config()
    use_amp(cfg)
    assert cfg.model.backbone.autocast == 'bfloat16'
    assert cfg.optim_wrapper.type == 'OptimWrapper'
    cfg.model.backbone.type = 'ResNet'
    with pytest.raises(UserError, match="the config has 'ResNet'"):
        use_amp(cfg)


def test_scaling_the_learning_rate_needs_the_batch_size_it_was_chosen_for() -> None:
    cfg = make_config(auto_scale_lr={'base_batch_size': 16, 'enable': False})
    scale_lr(cfg)
    assert cfg.auto_scale_lr.enable
    with pytest.raises(UserError, match='base_batch_size'):
        scale_lr(make_config())


def test_a_work_directory_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / 'notes').write_text('mine')
    with pytest.raises(UserError, match=r"^--work-dir '.*notes' cannot be a folder: File exists$"):
        build_runner(make_config(work_dir=str(tmp_path / 'notes')))
    assert (tmp_path / 'notes').read_text() == 'mine'


@pytest.mark.parametrize(
    ('toolbox', 'kind'),
    [('mmpretrain', 'DumpResults'), ('mmseg', 'DumpResults'), ('mmdet', 'DumpDetResults')],
)
def test_predictions_go_to_a_pickle_beside_the_metrics(toolbox: str, kind: str) -> None:
    cfg = make_config(default_scope=toolbox, test_evaluator={'type': 'Metric'})
    with pytest.raises(UserError, match=r"^--out 'all\.json': .* ends in \.pkl$"):
        keep_predictions(cfg, 'all.json')
    keep_predictions(cfg, 'all.pkl')
    assert [metric.type for metric in cfg.test_evaluator] == ['Metric', kind]


def test_testing_asks_for_no_starting_weights() -> None:
    cfg = make_config()
    cfg.model.backbone.init_cfg = {'type': 'Pretrained', 'checkpoint': 'gone.pth'}
    cfg.model.init_cfg = {'type': 'Xavier'}
    drop_pretrained(cfg.model)
    assert cfg.model.backbone.init_cfg is None
    assert cfg.model.init_cfg.type == 'Xavier'


def test_starting_weights_deep_inside_a_model_are_dropped_too() -> None:
    cfg = make_config()
    cfg.model.heads = [
        {'inner': {'init_cfg': {'type': 'Pretrained', 'checkpoint': 'gone.pth'}}, 'init_cfg': []}
    ]
    drop_pretrained(cfg.model)
    assert cfg.model.heads[0].inner.init_cfg is None
    assert cfg.model.heads[0].init_cfg == []


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
