"""Mixers in windows and stripes against a loop over the windows; options and their errors."""

import inspect
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inline.checkpoints.state_dict import load_complete_state_dict
from inline.models.layers import stripes, swin_windows
from inline.models.layers import windows as windows_module
from inline.models.mixers import (
    AttentionMixer,
    FLattenMixer,
    InLineMixer,
    LinearMixer,
    MixerOptions,
    MLLAGatedMixer,
    NystromMixer,
    SoftmaxMixer,
    build_mixer,
)
from inline.ops import (
    flatten_attention_naive,
    inline_attention_naive,
    local_residual_naive,
    softmax_attention_naive,
)
from inline.utils.errors import UserError
from tests.models.families import FAMILIES, build

HW = (9, 13)


def tokens(channels: int = 8, hw: tuple[int, int] = HW) -> Tensor:
    return torch.randn(
        2, hw[0] * hw[1], channels, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


def window_rows(hw: tuple[int, int], window: int, shift: int) -> list[list[int]]:
    """Return the tokens of each shifted window that is cut off at the border, found one by one."""
    windows: dict[tuple[int, int], list[int]] = {}
    for y in range(hw[0]):
        for x in range(hw[1]):
            key = (-(-(y + 1 - shift) // window), -(-(x + 1 - shift) // window))
            windows.setdefault(key, []).append(y * hw[1] + x)
    return list(windows.values())


def heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


@pytest.mark.parametrize('shift', [False, True])
def test_inline_windows_without_wrap_match_a_loop_over_windows(shift: bool) -> None:
    """Means, covariances, mean tokens and neighbours are those of one window, with the naive ops."""
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
def test_softmax_windows_match_a_loop_over_windows(shift: bool) -> None:
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
    vertical = [
        [y * HW[1] + x for y in range(HW[0]) for x in range(HW[1]) if x // split == stripe]
        for stripe in range(13)
    ]
    horizontal = [
        [y * HW[1] + x for y in range(HW[0]) for x in range(HW[1]) if y // split == stripe]
        for stripe in range(9)
    ]
    for channels, windows in ((slice(0, 4), vertical), (slice(4, 8), horizontal)):
        for rows in filter(None, windows):
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
    'inline without wrap': lambda: InLineMixer(8, 2, window_size=4, shift=True, wrap=False),
    'inline by division': lambda: InLineMixer(8, 2, window_size=4, injective=False, kernel='elu'),
    'inline affine': lambda: InLineMixer(8, 2, window_size=4, shift=True, kernel='affine_relu'),
    'linear affine': lambda: LinearMixer(8, 2, window_size=4, kernel='affine_relu'),
    'linear signed': lambda: LinearMixer(8, 2, split_size=4, kernel='leaky_relu'),
    'inline stripes': lambda: InLineMixer(8, 2, split_size=4, lepe=True, kernel='exp'),
    'softmax windows': lambda: SoftmaxMixer(8, 2, window_size=4, relative_position=True),
    'softmax shifted': lambda: SoftmaxMixer(8, 2, window_size=4, shift=True, relative_position=True),
    'softmax without wrap': lambda: SoftmaxMixer(
        8, 2, window_size=4, shift=True, relative_position=True, wrap=False
    ),
    'softmax stripes': lambda: SoftmaxMixer(8, 2, split_size=4, lepe=True),
}


@pytest.mark.parametrize('fill', [float('nan'), 1e3])
@pytest.mark.parametrize('kind', MIXERS)
def test_padding_has_no_effect(kind: str, fill: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    mixer, x = MIXERS[kind]().double(), tokens()
    clean = mixer(x, HW)
    cotangent = torch.randn_like(clean)
    gradients = torch.autograd.grad(clean, list(mixer.parameters()), cotangent)
    monkeypatch.setattr(windows_module, 'PAD_VALUE', fill)
    dirty = mixer(x, HW)
    torch.testing.assert_close(dirty, clean, rtol=0, atol=1e-12)
    if fill == fill:
        dirty_gradients = torch.autograd.grad(dirty, list(mixer.parameters()), cotangent)
        torch.testing.assert_close(dirty_gradients, gradients, rtol=0, atol=1e-12)


def test_windows_of_the_test_above_are_padded() -> None:
    device = torch.device('cpu')
    assert swin_windows(HW, 4, shifted=True).key_mask(1, device) is not None
    assert all(windows.key_mask(1, device) is not None for windows in stripes(HW, 4))


def test_mean_before_norm_is_the_mean_of_the_map() -> None:
    torch.manual_seed(0)
    mixer = InLineMixer(8, 2, mean_before_norm=True, split_size=3).double()
    x, prenorm_x = tokens(), tokens() ** 2
    out = mixer(x, HW, prenorm_x)
    # Reordered tokens have the same mean; another mean changes the output.
    torch.testing.assert_close(out, mixer(x, HW, prenorm_x.flip(1)))
    assert not torch.allclose(out, mixer(x, HW, prenorm_x + 1))


@pytest.mark.parametrize('queries', [slice(None), slice(3, 7)])
@pytest.mark.parametrize('kind', MIXERS)
def test_weights_applied_to_values_give_attend(kind: str, queries: slice) -> None:
    torch.manual_seed(0)
    mixer, x = MIXERS[kind]().double(), tokens()
    for inputs in mixer.partition_inputs(x, HW):
        weights = mixer.weights(inputs, queries)
        attended = (weights @ inputs.heads()[2]).transpose(1, 2).flatten(2)
        torch.testing.assert_close(attended, mixer.attend(inputs)[:, queries], rtol=1e-10, atol=1e-12)
        # Normalisation by division adds an epsilon, and gives 0 where no key matches.
        if isinstance(mixer, SoftmaxMixer) or getattr(mixer, 'injective', False):
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1], dtype=x.dtype))


def test_softmax_attends_to_the_same_tokens_with_and_without_wrap() -> None:
    torch.manual_seed(0)
    wrapped = SoftmaxMixer(8, 2, window_size=4, shift=True, relative_position=True).double()
    unwrapped = SoftmaxMixer(8, 2, window_size=4, shift=True, relative_position=True, wrap=False).double()
    torch.nn.init.normal_(wrapped.position.weight)
    unwrapped.load_state_dict(wrapped.state_dict())
    torch.testing.assert_close(unwrapped(tokens(), HW), wrapped(tokens(), HW), rtol=1e-10, atol=1e-12)


def test_inline_with_everything_switched_off_is_plain_linear_attention() -> None:
    torch.manual_seed(0)
    ours = InLineMixer(8, 2, kernel='relu', injective=False, residual=False).double()
    plain = LinearMixer(8, 2).double()
    plain.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(tokens(), HW), plain(tokens(), HW), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize('kind', [InLineMixer, LinearMixer])
def test_affine_kernel_starts_as_relu_and_is_shared_by_all_heads(kind: type) -> None:
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
    inputs = next(affine.partition_inputs(tokens(), HW))
    q, k = (
        torch.relu(heads(t, 2) @ affine.kernel.weight.T + affine.kernel.bias) for t in (inputs.q, inputs.k)
    )
    scores = q @ k.transpose(-2, -1)
    if kind is LinearMixer:
        expected = scores / (scores.sum(dim=-1, keepdim=True) + 117e-6)
    else:
        expected = (0.5 * (scores - scores.mean(dim=-1, keepdim=True)) + 1) / 117
    torch.testing.assert_close(affine.weights(inputs), expected, rtol=1e-10, atol=1e-12)


def test_unknown_option_lists_the_options() -> None:
    with pytest.raises(UserError) as error:
        build_mixer({'type': 'Linear', 'window': 4}, 8, 2)
    assert str(error.value) == (
        "unknown option 'window' of mixer 'Linear': "
        "it takes kernel, qkv_bias, window_size, shift, wrap, split_size, lepe (did you mean 'window_size'?)"
    )


def test_mixer_options_match_the_base_class() -> None:
    parameters = list(inspect.signature(AttentionMixer).parameters)
    assert parameters == ['dim', 'num_heads', *MixerOptions.__annotations__]


@pytest.mark.parametrize('kind', ['InLine', 'Linear'])
def test_unknown_kernel_lists_the_kernels(kind: str) -> None:
    allowed = 'identity, relu, leaky_relu, exp, elu, affine_relu'
    with pytest.raises(UserError, match=f"unknown kernel 'cos': choose one of {allowed}"):
        build_mixer({'type': kind, 'kernel': 'cos'}, 8, 2)


@pytest.mark.parametrize('split', [None, 3])
def test_flatten_convolution_has_a_kernel_per_channel_shared_by_heads(split: int | None) -> None:
    torch.manual_seed(0)
    mixer, x = FLattenMixer(8, 4, split_size=split).double(), tokens()
    for inputs in mixer.partition_inputs(x, HW):
        local, side = mixer.local(inputs), inputs.hw
        own = inputs.v.transpose(1, 2).unflatten(2, side)
        for channel in range(own.shape[1]):
            # Channel 0 of each head of 2 channels has kernel 0, channel 1 kernel 1.
            weight, bias = mixer.conv.weight[channel % 2], mixer.conv.bias[channel % 2]
            expected = F.conv2d(own[:, [channel]], weight[None], bias[None], padding=2)
            torch.testing.assert_close(local[..., channel].unflatten(1, side), expected[:, 0])


@pytest.mark.parametrize('split', [None, 3])
def test_nystrom_convolution_has_a_kernel_per_head(split: int | None) -> None:
    torch.manual_seed(0)
    mixer, x = NystromMixer(8, 4, conv_size=3, split_size=split).double(), tokens()
    for inputs in mixer.partition_inputs(x, HW):
        local, side = mixer.local(inputs), inputs.hw
        own = inputs.v.transpose(1, 2).unflatten(2, side)
        for channel in range(own.shape[1]):
            weight = mixer.conv.weight[(inputs.channels.start + channel) // 2]
            expected = F.conv2d(own[:, [channel]], weight[None], padding=1)
            torch.testing.assert_close(local[..., channel].unflatten(1, side), expected[:, 0])


@pytest.mark.parametrize('split', [None, 3])
def test_nystrom_convolution_along_the_sequence(split: int | None) -> None:
    torch.manual_seed(0)
    mixer = NystromMixer(8, 4, conv_size=5, conv_axes='sequence', split_size=split).double()
    for inputs in mixer.partition_inputs(tokens(), HW):
        local, own = mixer.local(inputs), inputs.v.transpose(1, 2)
        for channel in range(own.shape[1]):
            weight = mixer.conv.weight[(inputs.channels.start + channel) // 2, :, :, 0]
            expected = F.conv1d(own[:, [channel]], weight[None], padding=2)
            torch.testing.assert_close(local[..., channel], expected[:, 0])


@pytest.mark.parametrize('prefix', ['', 'blocks.0.mixer.'])
def test_weights_with_a_nystrom_convolution_are_not_loaded_without_it(prefix: str) -> None:
    """The default of earlier versions had one."""
    old, new = NystromMixer(8, 2, conv_size=3), NystromMixer(8, 2)
    model = torch.nn.Sequential()
    model.add_module('blocks', torch.nn.ModuleList([torch.nn.ModuleDict({'mixer': new})]))
    weights = {f'{prefix}{name}': value for name, value in old.state_dict().items()}
    with pytest.raises(UserError, match=rf'weights {prefix}conv.weight: .* set conv_size=3 in the config'):
        (model if prefix else new).load_state_dict(weights, strict=False)
    # Weights of other mixers may be moved to it.
    new.load_state_dict(FLattenMixer(8, 2).state_dict(), strict=False)


def test_nystrom_warns_of_weights_with_other_segments() -> None:
    mixer = NystromMixer(8, 4, conv_size=3)
    weights = mixer.state_dict()
    assert weights._metadata['']['version'] == 2
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        mixer.load_state_dict(weights)
        # Weights of unknown age, as in a file of safetensors.
        mixer.load_state_dict(dict(weights))
    weights._metadata['']['version'] = 1
    with pytest.warns(UserWarning, match=r'num_landmarks \(64\) does not divide the tokens'):
        mixer.load_state_dict(weights)


def test_weights_without_lrpe_are_not_loaded_silently() -> None:
    """Earlier versions of TransNormer had no LRPE."""
    old, new = ({'type': 'TransNormer', 'lrpe': lrpe} for lrpe in (False, True))
    weights, model = build('InLineDeiT', mixers=old).state_dict(), build('InLineDeiT', mixers=new)
    with pytest.raises(UserError, match=r'missing from the file: blocks\.0\.mixer\.lrpe\.theta'):
        load_complete_state_dict(model, weights, 'old.pth')
    load_complete_state_dict(build('InLineDeiT', mixers=old), weights, 'old.pth')


def test_gate_of_mlla() -> None:
    """Prefix tokens skip the convolution. With a gate of SiLU(0) = 0 only the bias of proj remains."""
    torch.manual_seed(0)
    mixer, x = MLLAGatedMixer(8, 2).double(), tokens(hw=(4, 5))
    torch.nn.init.zeros_(mixer.conv.weight)
    torch.nn.init.zeros_(mixer.conv.bias)
    inputs = next(mixer.partition_inputs(x, (3, 6)))
    assert torch.equal(inputs.v[:, :2], F.silu(mixer.in_proj(x[:, :2])))
    assert not inputs.v[:, 2:].any()
    torch.nn.init.zeros_(mixer.gate[0].weight)
    torch.nn.init.zeros_(mixer.gate[0].bias)
    torch.testing.assert_close(mixer(x, (4, 5)), mixer.proj.bias.expand_as(x))


@pytest.mark.parametrize('hw', [HW, (8, 6)])
def test_flatten_with_reduced_keys(hw: tuple[int, int]) -> None:
    """Keys, values and key positions are those of 2×2 patches, also if they do not divide the map."""
    torch.manual_seed(0)
    mixer, x = FLattenMixer(8, 2, sr_ratio=2, position_size=(3, 4)).double(), tokens(hw=hw)
    torch.nn.init.normal_(mixer.key_position.weight)
    (inputs,) = mixer.partition_inputs(x, hw)
    reduced_hw = (-(-hw[0] // 2), -(-hw[1] // 2))
    assert inputs.v.shape == inputs.k.shape == (2, reduced_hw[0] * reduced_hw[1], 8)
    table = F.interpolate(mixer.key_position.weight, reduced_hw, mode='bilinear').flatten(2).transpose(1, 2)
    q, k, v = heads(inputs.q, 2), heads(inputs.k + table, 2), heads(inputs.v, 2)
    scale = F.softplus(mixer.scale).unflatten(0, (2, 4))
    expected = flatten_attention_naive(q, k, v, scale=scale).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mixer.attend(inputs), expected, rtol=1e-10, atol=1e-12)
    assert mixer(x, hw).shape == x.shape
    assert not mixer.supports_prefix


@pytest.mark.parametrize('kind', ['FLatten', 'Nystrom'])
def test_baseline_without_convolution_has_no_local_term(kind: str) -> None:
    mixer = build_mixer({'type': kind, 'conv_size': None}, 8, 2).double()
    assert mixer.conv is None
    assert all(mixer.local(inputs) is None for inputs in mixer.partition_inputs(tokens(), HW))


def test_mlla_has_lepe_in_every_family_unless_switched_off() -> None:
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
        ({'type': 'Nystrom', 'conv_axes': 'rows'}, "conv_axes 'rows'.*must be one of 'map', 'sequence'"),
        ({'type': 'Nystrom', 'inverse_init': 'max'}, "inverse_init 'max'.*must be one of 'image', 'batch'"),
        ({'type': 'TransNormer', 'variant': 'T3'}, "variant 'T3'.*must be one of 'T1', 'T2'"),
        ({'type': 'DiagAttention', 'block_size': 0}, 'block_size 0: must be from 1 to 16384'),
        ({'type': 'FLatten', 'position_size': (4, 0)}, 'position_size 0: must be from 1 to 1024, or None'),
        (
            {'type': 'FLatten', 'sr_ratio': 2, 'window_size': 4},
            'sr_ratio 2: not supported with windows or stripes',
        ),
        ({'type': 'CosFormer', 'kernel': 'relu'}, "unknown option 'kernel' of mixer 'CosFormer'"),
        ({'type': 'MLLA', 'split_size': 0}, 'split_size 0: must be from 1 to 1024'),
    ],
)
def test_invalid_options_of_baselines(config: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_mixer(config, 8, 2)
