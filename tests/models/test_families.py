"""Tests that hold for every family, with any attention."""

import csv
from typing import Any

import pytest
import torch

from inline.checkpoints.official import OFFICIAL, OfficialModel
from inline.utils.errors import UserError
from tests.conftest import ROOT
from tests.models.families import FAMILIES, build
from tools.make_model_table import OUT, table_row

with (ROOT / 'results' / 'paper' / 'imagenet.csv').open(newline='') as _file:
    PAPER = {(row['model'], row['resolution']): row for row in csv.DictReader(_file)}
with OUT.open(newline='') as _file:
    MEASURED = list(csv.reader(_file))
EVERY = pytest.mark.parametrize('family', FAMILIES)
MIXES = {
    'default': None,
    'inline': {'type': 'InLine'},
    'softmax': {'type': 'Softmax'},
    'windows': {'type': 'InLine', 'window_size': 3},
    'shifted windows without wrap': {'type': 'InLine', 'window_size': 3, 'wrap': False},
    'stripes': {'type': 'InLine', 'split_size': 3},
}


@pytest.mark.slow
@pytest.mark.parametrize('model', OFFICIAL.values(), ids=lambda model: model.name)
def test_parameters_and_multiply_adds_match_paper_and_results(model: OfficialModel) -> None:
    row = table_row(model)
    paper = PAPER[model.title, str(model.img_size)]
    assert row[4] == paper['params_m']
    assert row[5] == paper['flops_g'] or not paper['flops_g']
    assert row in MEASURED


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize('mix', MIXES)
@pytest.mark.parametrize(('height', 'width'), [(32, 32), (33, 47), (130, 70), (32, 200)])
def test_any_mixers_accept_any_image_size(family: str, mix: str, height: int, width: int) -> None:
    if family == 'InLineDeiT' and mix in ('windows', 'shifted windows without wrap', 'stripes'):
        with pytest.raises(UserError, match='do not support a class token'):
            build(family, mixers=MIXES[mix])(torch.zeros(1, 3, height, width))
        return
    torch.manual_seed(0)
    model = build(family, mixers=MIXES[mix])
    outs = model(torch.randn(2, 3, height, width))
    strides = (16,) if family == 'InLineDeiT' else (4, 8, 16, 32)
    for out, stride in zip(outs, strides, strict=True):
        assert out.shape[2:] == (-(-height // stride), -(-width // stride))
        assert out.isfinite().all()
    sum(out.square().mean() for out in outs).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@EVERY
def test_image_of_detection_size(family: str) -> None:
    with torch.no_grad():
        out = build(family)(torch.zeros(1, 3, 800, 1333))[-1]
    assert out.shape[2:] == ((50, 84) if family == 'InLineDeiT' else (25, 42))


@EVERY
def test_images_of_a_batch_are_independent(family: str) -> None:
    torch.manual_seed(0)
    model = build(family).double().eval()
    x = torch.randn(3, 3, 40, 72, dtype=torch.float64)
    for together, alone in zip(model(x), model(x[1:2]), strict=True):
        torch.testing.assert_close(together[1:2], alone, rtol=1e-10, atol=1e-10)


@EVERY
@pytest.mark.parametrize('mix', ['default', 'softmax'])
def test_gradient_checkpointing_gives_the_same_gradients(family: str, mix: str) -> None:
    results = []
    for with_cp in (False, True):
        torch.manual_seed(0)
        model = build(family, mixers=MIXES[mix], drop_path_rate=0.3, with_cp=with_cp).double().train()
        x = torch.randn(2, 3, 48, 64, dtype=torch.float64)
        torch.manual_seed(1)
        loss = sum(out.square().mean() for out in model(x))
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters())])
    for plain, saved in zip(*results, strict=True):
        torch.testing.assert_close(plain, saved, rtol=1e-10, atol=1e-12)


@EVERY
def test_bfloat16_gives_finite_losses_and_gradients(family: str) -> None:
    torch.manual_seed(0)
    model = build(family).train()
    # Large inputs, to provoke overflows.
    with torch.autocast('cpu', torch.bfloat16):
        loss = sum(out.float().square().mean() for out in model(20 * torch.randn(2, 3, 72, 104)))
    loss.backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


@EVERY
def test_fine_tuning_at_another_resolution(family: str) -> None:
    """Tables are interpolated, other weights are unchanged, and training lowers the loss."""
    torch.manual_seed(0)
    small, large = build(family, img_size=64), build(family, img_size=96)
    large.load_state_dict(small.state_dict())
    resized = 0
    for (name, before), after in zip(small.named_parameters(), large.parameters(), strict=True):
        if before.shape == after.shape:
            assert torch.equal(before, after), name
        else:
            resized += 1
            assert 'position.weight' in name
            # Interpolation keeps the range of the values.
            assert after.abs().max() <= 2 * before.abs().max()
    assert resized or family == 'InLineCSwin'
    x, target = torch.randn(4, 3, 96, 96), torch.randn(4)
    optimizer = torch.optim.SGD(large.parameters(), lr=0.05)
    losses = []
    for _ in range(4):
        loss = (large(x)[-1].flatten(1).square().mean(dim=1) - target).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]


@EVERY
def test_mixers_can_differ_by_block(family: str) -> None:
    blocks = [{'type': 'InLine', 'kernel': 'relu'}, {'type': 'Softmax'}]
    model = build(family, mixers=[*blocks, *blocks] if family == 'InLineDeiT' else [blocks] * 4)
    names = [type(module.mixer).__name__ for module in model.modules() if hasattr(module, 'mixer')]
    assert names == ['InLineMixer', 'SoftmaxMixer'] * (len(names) // 2)


@pytest.mark.parametrize(
    ('family', 'options', 'message'),
    [
        ('InLineDeiT', {'out_type': 'mean'}, "out_type 'mean': choose one of featmap, cls_token"),
        ('InLineDeiT', {'out_indices': (5,)}, r'out_indices \(5,\)'),
        ('InLineDeiT', {'arch': 'huge'}, "unknown arch 'huge': choose one of micro, tiny, small, base"),
        ('InLineSwin', {'arch': 'large'}, "unknown arch 'large': choose one of micro, tiny, small, base"),
        ('InLineSwin', {'mixers': {'type': 'InLine', 'window_size': 0}}, 'window_size 0: must be from 1'),
        (
            'InLineSwin',
            {'mixers': {'type': 'InLine', 'window_size': 7, 'split_size': 7}},
            'window_size 7 and split_size 7: give only one',
        ),
        (
            'InLineSwin',
            {'mixers': {'type': 'Softmax', 'window_size': None}},
            'relative_position True: requires a window_size',
        ),
        ('InLineSwin', {'mixers': {'type': 'Softmax', 'sr_ratio': 2}}, 'sr_ratio 2: not supported'),
        (
            'InLineCSwin',
            {'arch': {'embed_dims': (6, 12, 24, 48), 'depths': (1, 1, 1, 1), 'num_heads': (3, 3, 3, 3)},
             'mixers': {'type': 'Softmax'}},
            'num_heads 3: stripes need an even number of heads',
        ),
        (
            'InLineCSwin',
            {'arch': {'embed_dims': (8, 16), 'depths': (1, 1), 'num_heads': (2, 2), 'mlp_ratios': (4, 4),
                      'inline_depths': (2, 0)}},
            r'inline_depths \(2, 0\): each must be from 0 to its depth of \(1, 1\)',
        ),
    ],
)  # fmt: skip
def test_invalid_arguments(family: str, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(family, **options)


@EVERY
def test_layer_depths_increase_from_input_to_output(family: str) -> None:
    model = build(family)
    depths = {
        name: model.get_layer_depth(f'backbone.{name}', 'backbone.') for name, _ in model.named_parameters()
    }
    counts = {count for _, count in depths.values()}
    blocks = sum(1 for module in model.modules() if hasattr(module, 'mixer'))
    assert counts == {blocks + 2}
    first = 'patch_embed.proj.weight' if family == 'InLineDeiT' else 'stages.0.downsample.proj.weight'
    assert depths[first][0] == 0
    numbers = [depth for name, (depth, _) in depths.items() if '.mixer.proj.weight' in name]
    assert numbers == list(range(1, blocks + 1))
    if family != 'InLinePVT':
        assert max(depth for depth, _ in depths.values()) == blocks + 1


WIDTHS = {'embed_dims': (32, 64, 128, 192), 'num_heads': (2, 4, 8, 12), 'mlp_ratios': (4, 4, 4, 3)}
NANO = {'embed_dims': (24, 48, 64, 96), 'num_heads': (2, 4, 4, 6), 'mlp_ratios': (3, 3, 3, 3)}
DEIT = {'embed_dims': 128, 'depth': 6, 'num_heads': 8, 'img_size': 64, 'patch_size': 4, 'mlp_ratio': 4}
NO_POSITION = {'absolute_position': False, 'out_norm': True}


@pytest.mark.parametrize(
    ('family', 'name', 'settings', 'options'),
    [
        ('InLinePVT', 'nano', {**NANO, 'depths': (1, 1, 1, 1)}, NO_POSITION),
        ('InLinePVT', 'micro', {**WIDTHS, 'depths': (1, 2, 2, 1)}, NO_POSITION),
        ('InLineSwin', 'micro', {**WIDTHS, 'depths': (2, 2, 2, 1), 'inline_depths': (2, 2, 2, 0)}, {}),
        ('InLineCSwin', 'micro', {**WIDTHS, 'depths': (1, 2, 2, 1), 'inline_depths': (1, 2, 0, 0)}, {}),
        ('InLineDeiT', 'micro', DEIT, {}),
    ],
)
def test_small_archs_have_the_weights_of_their_first_trainings(
    family: str, name: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    """Checkpoints whose config lists the sizes, as those of earlier versions do, still load."""
    named = FAMILIES[family][0](name, img_size=64).eval()
    listed = FAMILIES[family][0](settings, img_size=64, **options).eval()
    assert str(named) == str(listed)
    named.load_state_dict(listed.state_dict())
    x = torch.randn(1, 3, 64, 64)
    for left, right in zip(named(x), listed(x), strict=True):
        assert torch.equal(left, right)


def test_options_of_pvt_take_precedence_over_its_arch() -> None:
    plain = build('InLinePVT', arch='nano', absolute_position=True, out_norm=False)
    assert len(plain.out_norms) == 0
    assert all(stage.position is not None for stage in plain.stages)
    tiny = build('InLinePVT', arch='tiny', absolute_position=False, out_norm=True)
    assert len(tiny.out_norms) == 4
    assert all(stage.position is None for stage in tiny.stages)
