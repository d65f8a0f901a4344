"""Mixers in windows and stripes against a loop over the regions; and padding that must not matter."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inline.errors import UserError
from inline.models.layers import regions as regions_module
from inline.models.layers import square_windows, stripes
from inline.models.mixers import (
    AttentionMixer,
    FLattenMixer,
    InLineMixer,
    LinearMixer,
    MixerOptions,
    NystromMixer,
    SoftmaxMixer,
    build_mixer,
)
from inline.ops import inline_attention_naive, local_residual_naive, softmax_attention_naive
from tests.models.families import FAMILIES, build

HW = (9, 13)


def tokens(channels: int = 8, hw: tuple[int, int] = HW) -> Tensor:
    return torch.randn(
        2, hw[0] * hw[1], channels, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


def window_rows(hw: tuple[int, int], window: int, shift: int) -> list[list[int]]:
    """The tokens of each part of shifted windows that are cut off at the border, found one by one."""
    parts: dict[tuple[int, int], list[int]] = {}
    for y in range(hw[0]):
        for x in range(hw[1]):
            key = (-(-(y + 1 - shift) // window), -(-(x + 1 - shift) // window))
            parts.setdefault(key, []).append(y * hw[1] + x)
    return list(parts.values())


def heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


@pytest.mark.parametrize('shift', [False, True])
def test_inline_windows_that_do_not_wrap_are_statistics_of_each_region(shift: bool) -> None:
    """Means, covariances, mean tokens and neighbours of one region, with the naive ops."""
    torch.manual_seed(0)
    mixer = InLineMixer(8, 2, window_size=4, shift=shift, wrap=False).double()
    x = tokens()
    q, k, v = mixer.qkv(x).chunk(3, dim=-1)
    expected = torch.zeros_like(x)
    for rows in window_rows(HW, 4, 2 if shift else 0):
        ys, xs = {row // HW[1] for row in rows}, {row % HW[1] for row in rows}
        own = [heads(t[:, rows], 2) for t in (q, k, v)]
        attended = inline_attention_naive(*own).transpose(1, 2).flatten(2)
        kernels = mixer.residual(x[:, rows].mean(dim=1))
        expected[:, rows] = attended + local_residual_naive(v[:, rows], kernels, (len(ys), len(xs)))
    torch.testing.assert_close(mixer(x, HW), mixer.proj(expected), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize('shift', [False, True])
def test_softmax_windows_see_their_region_only(shift: bool) -> None:
    torch.manual_seed(0)
    mixer = SoftmaxMixer(8, 2, window_size=4, shift=shift, relative_position=True).double()
    torch.nn.init.normal_(mixer.position.weight)
    x = tokens()
    q, k, v = mixer.qkv(x).chunk(3, dim=-1)
    expected = torch.zeros_like(x)
    for rows in window_rows(HW, 4, 2 if shift else 0):
        bias = torch.zeros(2, len(rows), len(rows), dtype=torch.float64)
        for a, first in enumerate(rows):
            for b, second in enumerate(rows):
                dy, dx = first // HW[1] - second // HW[1], first % HW[1] - second % HW[1]
                bias[:, a, b] = mixer.position.weight[0, :, dy + 3, dx + 3]
        own = [heads(t[:, rows], 2) for t in (q, k, v)]
        expected[:, rows] = softmax_attention_naive(*own, bias=bias).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mixer(x, HW), mixer.proj(expected), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize('split', [1, 3, 20])
def test_softmax_stripes_with_lepe(split: int) -> None:
    torch.manual_seed(0)
    mixer = SoftmaxMixer(8, 4, split_size=split, lepe=True).double()
    x = tokens()
    q, k, v = mixer.qkv(x).chunk(3, dim=-1)
    expected = torch.zeros_like(x)
    upright = [
        [y * HW[1] + x for y in range(HW[0]) for x in range(HW[1]) if x // split == part]
        for part in range(13)
    ]
    level = [
        [y * HW[1] + x for y in range(HW[0]) for x in range(HW[1]) if y // split == part] for part in range(9)
    ]
    for channels, parts in ((slice(0, 4), upright), (slice(4, 8), level)):
        for rows in filter(None, parts):
            ys, xs = {row // HW[1] for row in rows}, {row % HW[1] for row in rows}
            own = [heads(t[:, rows, channels], 2) for t in (q, k, v)]
            kernel = mixer.lepe.conv.weight[channels].reshape(1, 4, 9).expand(2, -1, -1)
            lepe = local_residual_naive(v[:, rows, channels], kernel, (len(ys), len(xs)))
            attended = softmax_attention_naive(*own).transpose(1, 2).flatten(2)
            expected[:, rows, channels] = attended + lepe + mixer.lepe.conv.bias[channels]
    torch.testing.assert_close(mixer(x, HW), mixer.proj(expected), rtol=1e-10, atol=1e-12)


MIXERS = {
    'inline windows': lambda: InLineMixer(8, 2, window_size=4),
    'inline shifted': lambda: InLineMixer(8, 2, window_size=4, shift=True),
    'inline cut': lambda: InLineMixer(8, 2, window_size=4, shift=True, wrap=False),
    'inline divided': lambda: InLineMixer(8, 2, window_size=4, injective=False, kernel='elu'),
    'inline affine': lambda: InLineMixer(8, 2, window_size=4, shift=True, kernel='affine_relu'),
    'linear affine': lambda: LinearMixer(8, 2, window_size=4, kernel='affine_relu'),
    'linear signed': lambda: LinearMixer(8, 2, split_size=4, kernel='leaky_relu'),
    'inline stripes': lambda: InLineMixer(8, 2, split_size=4, lepe=True, kernel='exp'),
    'softmax windows': lambda: SoftmaxMixer(8, 2, window_size=4, relative_position=True),
    'softmax shifted': lambda: SoftmaxMixer(8, 2, window_size=4, shift=True, relative_position=True),
    'softmax cut': lambda: SoftmaxMixer(8, 2, window_size=4, shift=True, relative_position=True, wrap=False),
    'softmax stripes': lambda: SoftmaxMixer(8, 2, split_size=4, lepe=True),
}


@pytest.mark.parametrize('fill', [float('nan'), 1e3])
@pytest.mark.parametrize('kind', MIXERS)
def test_what_is_in_the_padding_changes_no_token(
    kind: str, fill: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    mixer, x = MIXERS[kind]().double(), tokens()
    clean = mixer(x, HW)
    cotangent = torch.randn_like(clean)
    gradients = torch.autograd.grad(clean, list(mixer.parameters()), cotangent)
    monkeypatch.setattr(regions_module, 'PAD_VALUE', fill)
    dirty = mixer(x, HW)
    torch.testing.assert_close(dirty, clean, rtol=0, atol=1e-12)
    if fill == fill:
        dirty_gradients = torch.autograd.grad(dirty, list(mixer.parameters()), cotangent)
        torch.testing.assert_close(dirty_gradients, gradients, rtol=0, atol=1e-12)


def test_the_padding_was_there() -> None:
    """Else the test above would prove nothing."""
    device = torch.device('cpu')
    assert square_windows(HW, 4, shifted=True).key_mask(1, device) is not None
    assert all(part.key_mask(1, device) is not None for part in stripes(HW, 4))


def test_the_mean_before_the_norm_is_of_the_whole_map() -> None:
    torch.manual_seed(0)
    mixer = InLineMixer(8, 2, mean_before_norm=True, split_size=3).double()
    x, unnormed = tokens(), tokens() ** 2
    out = mixer(x, HW, unnormed)
    # Any order of the tokens has the same mean; another mean gives another output.
    torch.testing.assert_close(out, mixer(x, HW, unnormed.flip(1)))
    assert not torch.allclose(out, mixer(x, HW, unnormed + 1))


@pytest.mark.parametrize('queries', [slice(None), slice(3, 7)])
@pytest.mark.parametrize('kind', MIXERS)
def test_weights_are_those_that_the_mixer_applies(kind: str, queries: slice) -> None:
    torch.manual_seed(0)
    mixer, x = MIXERS[kind]().double(), tokens()
    for part in mixer.parts(x, HW):
        weights = mixer.weights(part, queries)
        attended = (weights @ part.heads()[2]).transpose(1, 2).flatten(2)
        torch.testing.assert_close(attended, mixer.attend(part)[:, queries], rtol=1e-10, atol=1e-12)
        # What divides moves its divisor a little away from zero, and gives nothing where nothing matches.
        if isinstance(mixer, SoftmaxMixer) or getattr(mixer, 'injective', False):
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1], dtype=x.dtype))


def test_softmax_sees_the_same_tokens_whether_windows_wrap_or_not() -> None:
    torch.manual_seed(0)
    wrapped = SoftmaxMixer(8, 2, window_size=4, shift=True, relative_position=True).double()
    cut = SoftmaxMixer(8, 2, window_size=4, shift=True, relative_position=True, wrap=False).double()
    torch.nn.init.normal_(wrapped.position.weight)
    cut.load_state_dict(wrapped.state_dict())
    torch.testing.assert_close(cut(tokens(), HW), wrapped(tokens(), HW), rtol=1e-10, atol=1e-12)


def test_inline_with_both_parts_switched_off_is_plain_linear_attention() -> None:
    torch.manual_seed(0)
    ours = InLineMixer(8, 2, kernel='relu', injective=False, residual=False).double()
    plain = LinearMixer(8, 2).double()
    plain.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(tokens(), HW), plain(tokens(), HW), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize('kind', [InLineMixer, LinearMixer])
def test_the_affine_kernel_begins_as_relu_and_is_one_function_for_all_heads(kind: type) -> None:
    torch.manual_seed(0)
    affine, relu = (kind(8, 2, kernel=name).double() for name in ('affine_relu', 'relu'))
    relu.load_state_dict({k: v for k, v in affine.state_dict().items() if not k.startswith('kernel.')})
    torch.testing.assert_close(affine(tokens(), HW), relu(tokens(), HW))
    assert {name: tuple(p.shape) for name, p in affine.kernel.named_parameters()} == {
        'weight': (4, 4),
        'bias': (4,),
    }
    torch.nn.init.normal_(affine.kernel.weight)
    torch.nn.init.normal_(affine.kernel.bias)
    part = next(affine.parts(tokens(), HW))
    q, k = (torch.relu(heads(t, 2) @ affine.kernel.weight.T + affine.kernel.bias) for t in (part.q, part.k))
    scores = q @ k.transpose(-2, -1)
    if kind is LinearMixer:
        expected = scores / (scores.sum(dim=-1, keepdim=True) + 117e-6)
    else:
        expected = (0.5 * (scores - scores.mean(dim=-1, keepdim=True)) + 1) / 117
    torch.testing.assert_close(affine.weights(part), expected, rtol=1e-10, atol=1e-12)


def test_an_unknown_option_is_answered_with_all_that_a_mixer_takes() -> None:
    with pytest.raises(UserError) as error:
        build_mixer({'type': 'Linear', 'window': 4}, 8, 2)
    assert str(error.value) == (
        "unknown option 'window' of mixer 'Linear': "
        "it takes kernel, qkv_bias, window_size, shift, wrap, split_size, lepe (did you mean 'window_size'?)"
    )


def test_every_option_of_the_base_class_can_be_handed_on() -> None:
    parameters = list(inspect.signature(AttentionMixer).parameters)
    assert parameters == ['dim', 'num_heads', *MixerOptions.__annotations__]


@pytest.mark.parametrize('kind', ['InLine', 'Linear'])
def test_an_unknown_kernel_is_answered_with_those_there_are(kind: str) -> None:
    allowed = 'identity, relu, leaky_relu, exp, elu, affine_relu'
    with pytest.raises(UserError, match=f"unknown kernel 'cos': choose one of {allowed}"):
        build_mixer({'type': kind, 'kernel': 'cos'}, 8, 2)


@pytest.mark.parametrize('split', [None, 3])
def test_the_convolution_of_flatten_has_a_kernel_per_channel_that_heads_share(split: int | None) -> None:
    torch.manual_seed(0)
    mixer, x = FLattenMixer(8, 4, split_size=split).double(), tokens()
    for part in mixer.parts(x, HW):
        local, side = mixer.local(part), part.hw
        own = part.v.transpose(1, 2).unflatten(2, side)
        for channel in range(own.shape[1]):
            # Channel 0 of each head of 2 channels has kernel 0, channel 1 kernel 1.
            weight, bias = mixer.conv.weight[channel % 2], mixer.conv.bias[channel % 2]
            expected = F.conv2d(own[:, [channel]], weight[None], bias[None], padding=2)
            torch.testing.assert_close(local[..., channel].unflatten(1, side), expected[:, 0])


@pytest.mark.parametrize('split', [None, 3])
def test_the_convolution_of_nystrom_has_a_kernel_per_head(split: int | None) -> None:
    torch.manual_seed(0)
    mixer, x = NystromMixer(8, 4, split_size=split).double(), tokens()
    for part in mixer.parts(x, HW):
        local, side = mixer.local(part), part.hw
        own = part.v.transpose(1, 2).unflatten(2, side)
        for channel in range(own.shape[1]):
            weight = mixer.conv.weight[(part.channels.start + channel) // 2]
            expected = F.conv2d(own[:, [channel]], weight[None], padding=1)
            torch.testing.assert_close(local[..., channel].unflatten(1, side), expected[:, 0])


@pytest.mark.parametrize('kind', ['FLatten', 'Nystrom'])
def test_without_its_convolution_a_rival_has_no_local_term(kind: str) -> None:
    mixer = build_mixer({'type': kind, 'conv_size': None}, 8, 2).double()
    assert mixer.conv is None
    assert all(mixer.local(part) is None for part in mixer.parts(tokens(), HW))


def test_mlla_has_one_lepe_in_every_family_unless_it_is_switched_off() -> None:
    for family in FAMILIES:
        for config, expected in (({}, True), ({'lepe': False}, False)):
            model = build(family, mixers={'type': 'MLLA', **config})
            mixers = [module.mixer for module in model.modules() if hasattr(module, 'mixer')]
            assert {mixer.lepe is not None for mixer in mixers} == {expected}


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ({'type': 'FLatten', 'power': 0}, 'power 0: must be from 1 to 16'),
        ({'type': 'FLatten', 'conv_size': 4}, 'conv_size 4: must be odd and from 1 to 63, or None'),
        ({'type': 'Nystrom', 'conv_size': 0}, 'conv_size 0: must be odd and from 1 to 63, or None'),
        ({'type': 'Nystrom', 'num_landmarks': 0}, 'num_landmarks 0: must be from 1 to 16384'),
        ({'type': 'Nystrom', 'iterations': 0}, 'iterations 0: must be from 1 to 100'),
        ({'type': 'CosFormer', 'kernel': 'relu'}, "unknown option 'kernel' of mixer 'CosFormer'"),
        ({'type': 'MLLA', 'split_size': 0}, 'split_size 0: must be from 1 to 1024'),
    ],
)
def test_bad_options_of_rivals_say_the_value_and_what_is_allowed(config: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_mixer(config, 8, 2)
