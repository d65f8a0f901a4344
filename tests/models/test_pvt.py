"""InLine-PVT, and what all pyramid families inherit."""

import pytest
import torch

from inline.models import InLinePVT
from inline.models.backbones.pvt import ARCHS
from inline.utils.errors import UserError

SMALL = {
    'embed_dims': (16, 32, 40, 64),
    'depths': (1, 1, 2, 1),
    'num_heads': (2, 4, 5, 8),
    'mlp_ratios': (4, 4, 2, 2),
}


@pytest.mark.parametrize(
    ('arch', 'millions'), [('tiny', 12.03), ('small', 21.56), ('medium', 37.62), ('large', 51.15)]
)
def test_parameters_with_a_linear_head_of_1000_classes(arch: str, millions: float) -> None:
    with torch.device('meta'):
        count = sum(p.numel() for p in InLinePVT(arch).parameters()) + 512 * 1000 + 1000
    assert round(count / 1e6, 2) == millions


@pytest.mark.parametrize(('height', 'width'), [(33, 47), (130, 70)])
def test_feature_sizes_are_rounded_up(height: int, width: int) -> None:
    model = InLinePVT(SMALL, img_size=64).eval()
    outs = model(torch.randn(2, 3, height, width))
    for i, out in enumerate(outs):
        stride = 4 * 2**i
        assert out.shape == (2, SMALL['embed_dims'][i], -(-height // stride), -(-width // stride))
        assert out.isfinite().all()


def test_out_indices_select_the_levels() -> None:
    torch.manual_seed(0)
    every = InLinePVT(SMALL, img_size=64).eval()
    some = InLinePVT(SMALL, img_size=64, out_indices=(1, 3)).eval()
    some.load_state_dict(every.state_dict())
    x = torch.randn(1, 3, 64, 64)
    for left, right in zip(some(x), (every(x)[1], every(x)[3]), strict=True):
        assert torch.equal(left, right)


def test_out_norm_normalizes_each_level() -> None:
    model = InLinePVT(SMALL, img_size=64, out_norm=True).eval()
    for out in model(torch.randn(2, 3, 64, 64)):
        assert out.mean(dim=1).abs().max() < 1e-4
        torch.testing.assert_close(
            out.var(dim=1, unbiased=False), torch.ones_like(out[:, 0]), rtol=0, atol=1e-2
        )


def test_drop_path_grows_linearly_and_is_off_in_eval_mode() -> None:
    model = InLinePVT(SMALL, img_size=64, drop_path_rate=0.4)
    rates = [block.drop_path.rate for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    x = torch.randn(4, 3, 64, 64)
    model.eval()
    assert torch.equal(model(x)[-1], model(x)[-1])
    model.train()
    assert not torch.equal(model(x)[-1], model(x)[-1])


def test_position_tables_of_another_resolution_are_interpolated() -> None:
    small, large = InLinePVT(SMALL, img_size=64), InLinePVT(SMALL, img_size=(96, 128))
    with torch.no_grad():
        for stage in small.stages:
            stage.position.weight.fill_(0.5)
    large.load_state_dict(small.state_dict())
    for i, stage in enumerate(large.stages):
        assert stage.position.weight.shape[-2:] == (-(-96 // (4 * 2**i)), -(-128 // (4 * 2**i)))
        assert (stage.position.weight == 0.5).all()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'arch': 'huge'}, "unknown arch 'huge': choose one of nano, micro, tiny, small, medium, large"),
        ({'arch': {**SMALL, 'width': 3}}, "unknown key 'width' of arch"),
        ({'arch': {'depths': (1,)}}, r'arch .* lacks embed_dims, num_heads: it takes'),
        ({'arch': {**SMALL, 'depths': (1, 1)}}, 'number of stages differs: embed_dims 4, depths 2'),
        ({'arch': {**SMALL, 'num_heads': (3, 4, 5, 8)}}, 'width 16 is not divisible by 3 heads'),
        ({'out_indices': (0, 4)}, r'out_indices \(0, 4\): must be increasing stages out of -4..3'),
        ({'out_indices': (2, 1)}, r'out_indices \(2, 1\)'),
        ({'img_size': 16}, 'img_size 16: .* from 32 to 16384'),
        ({'drop_path_rate': 1.0}, r'drop_path_rate 1\.0: must be at least 0 and below 1'),
        ({'mixers': [{'type': 'InLine'}] * 3}, r'mixers has 3 entries: .* per stage \(4\)'),
        (
            {'mixers': [{'type': 'InLine'}, [], {'type': 'InLine'}, {'type': 'InLine'}]},
            r'mixers\[1\] has 0 entries',
        ),
        ({'mixers': {'type': 'Cosine'}}, "unknown mixer type 'Cosine': choose one of .*InLine, .*Softmax"),
        ({'mixers': {'type': 'InLine', 'window': 7}}, "unknown option 'window' of mixer 'InLine'"),
        ({'mixers': {'type': 'InLine', 'kernel': 'cos'}}, "unknown kernel 'cos'"),
        ({'mixers': {'type': 'Softmax', 'sr_ratio': 0}}, 'sr_ratio 0: must be from 1 to 64'),
    ],
)
def test_invalid_arguments(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        InLinePVT(**{'arch': SMALL, 'img_size': 64, **options})


def test_image_below_32_pixels_raises() -> None:
    with pytest.raises(UserError, match='image of 31×64 pixels: each side must be at least 32'):
        InLinePVT(SMALL, img_size=64)(torch.randn(1, 3, 31, 64))


def test_mixers_can_differ_by_block() -> None:
    blocks = [{'type': 'InLine', 'kernel': 'relu'}, {'type': 'Softmax'}]
    model = InLinePVT(
        SMALL, img_size=64, mixers=[{'type': 'InLine'}, {'type': 'InLine'}, blocks, {'type': 'Softmax'}]
    )
    names = [[type(block.mixer).__name__ for block in stage.blocks] for stage in model.stages]
    assert names == [['InLineMixer'], ['InLineMixer'], ['InLineMixer', 'SoftmaxMixer'], ['SoftmaxMixer']]
    assert model.stages[2].blocks[0].mixer.kernel == 'relu'


def test_depths_are_those_of_the_paper() -> None:
    released = [arch for name, arch in ARCHS.items() if name not in ('nano', 'micro')]
    assert [arch.depths for arch in released] == [
        (2, 2, 2, 2),
        (3, 4, 6, 3),
        (3, 4, 18, 3),
        (3, 8, 27, 3),
    ]
