"""The mixers of Agent Attention, PolaFormer, RALA, MALA, MHLA and Circulant Attention.

Their maths is tested in tests/ops/ and against the authors' numbers. Here: options, families, precision, and
analysis of mixers with more weight matrices than heads.
"""

import pytest
import torch
from torch import Tensor

from inline.analysis.layers import Layer
from inline.analysis.locality import layer_locality
from inline.analysis.maps import layer_maps
from inline.analysis.masking import Mask, masked_attention
from inline.models import InLineDeiT, InLinePVT
from inline.models.mixers import AgentMixer, CirculantMixer, MHLAMixer, PolaFormerMixer, build_mixer
from inline.utils.errors import UserError
from tests.models.families import FAMILIES, build

KINDS = ('Agent', 'PolaFormer', 'RALA', 'MALA', 'MHLA', 'Circulant')
HW = (6, 9)


def tokens(prefix: int = 0, channels: int = 8, hw: tuple[int, int] = HW) -> Tensor:
    shape = (2, prefix + hw[0] * hw[1], channels)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize('kind', KINDS)
def test_autocast_to_float16_is_finite_and_accurate(kind: str) -> None:
    """Tokens far larger than those after a norm, forwards and backwards."""
    torch.manual_seed(0)
    hw = (24, 40)
    mixer, x = build_mixer({'type': kind}, 16, 2), (8 * tokens(channels=16, hw=hw).float()).requires_grad_()
    exact = mixer(x, hw)
    with torch.autocast('cpu', torch.float16):
        out = mixer(x, hw)
    assert (out.float() - exact).norm() <= 2e-2 * exact.norm()
    out.float().mean().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (x, *mixer.parameters()))


def test_class_token_of_agent_attention_has_its_own_bias_in_a_deit() -> None:
    model = build('InLineDeiT', mixers={'type': 'Agent'})
    assert all(block.mixer.key_bias.class_token is not None for block in model.blocks)
    model = InLineDeiT('tiny', out_indices=(0,), mixers={'type': 'Agent', 'class_token': False})
    assert model.blocks[0].mixer.query_bias.class_token is None
    for family in set(FAMILIES) - {'InLineDeiT'}:
        pyramid = build(family, mixers={'type': 'Agent'})
        assert all('class_token' not in name for name, _ in pyramid.named_parameters())


def test_class_token_bias_of_agent_attention_shifts_weight_to_the_class_token() -> None:
    torch.manual_seed(0)
    mixer = AgentMixer(8, 2, class_token=True).double()
    (inputs,) = mixer.partition_inputs(tokens(prefix=1), HW)
    before = mixer.weights(inputs)[..., 0]
    with torch.no_grad():
        mixer.key_bias.class_token += 5
    assert (mixer.weights(inputs)[..., 0] > before).all()


@pytest.mark.parametrize('kind', ['Agent', 'PolaFormer'])
def test_spatial_reduction_on_a_map_that_it_does_not_divide(kind: str) -> None:
    torch.manual_seed(0)
    mixer, hw = build_mixer({'type': kind, 'sr_ratio': 2}, 8, 2).double(), (5, 7)
    x = tokens(hw=hw)
    (inputs,) = mixer.partition_inputs(x, hw)
    assert inputs.v.shape == (2, 3 * 4, 8)
    weights = mixer.weights(inputs)
    assert weights.shape == (2, inputs.num_heads, 35, 12)
    attended = weights @ inputs.v.unflatten(-1, (inputs.num_heads, -1)).transpose(1, 2)
    torch.testing.assert_close(attended.transpose(1, 2).flatten(2), mixer.attend(inputs))
    assert mixer(x, hw).shape == x.shape
    model = InLinePVT('tiny', mixers={'type': kind, 'sr_ratio': 2}, out_indices=(0,))
    assert model(torch.randn(1, 3, 64, 96))[0].shape == (1, 64, 16, 24)


@pytest.mark.parametrize('kind', ['PolaFormer', 'RALA', 'MALA', 'MHLA'])
def test_without_convolution_there_is_no_local_term(kind: str) -> None:
    mixer = build_mixer({'type': kind, 'conv_size': None}, 8, 2).double()
    assert all(mixer.local(inputs) is None for inputs in mixer.partition_inputs(tokens(), HW))


@pytest.mark.parametrize('kind', ['PolaFormer', 'RALA', 'MALA', 'Circulant'])
def test_gate_multiplies_the_output_and_can_be_switched_off(kind: str) -> None:
    torch.manual_seed(0)
    gated, x = build_mixer({'type': kind}, 8, 2).double(), tokens()
    plain = build_mixer({'type': kind, 'gate': False}, 8, 2).double()
    plain.load_state_dict({k: v for k, v in gated.state_dict().items() if not k.startswith('gate.')})
    assert plain.gate is None
    # The linear layer of the gate gives 2 everywhere; circulant attention applies SiLU to it.
    layer = gated.gate[0] if kind == 'Circulant' else gated.gate
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(2)
    gated.proj.bias.data.zero_()
    plain.proj.bias.data.zero_()
    factor = 2 * torch.sigmoid(torch.tensor(2.0).double()) if kind == 'Circulant' else 2
    torch.testing.assert_close(gated(x, HW), factor * plain(x, HW))


def test_positional_encoding_of_polaformer_is_interpolated_to_the_map_and_to_loaded_weights() -> None:
    small, large = (PolaFormerMixer(8, 2, position_size=size).double() for size in (7, 14))
    torch.nn.init.normal_(small.position.weight)
    large.load_state_dict(small.state_dict())
    assert large.position.weight.shape == (1, 8, 14, 14)
    for hw in ((7, 7), (3, 20)):
        assert small(tokens(hw=hw), hw).shape == (2, hw[0] * hw[1], 8)
    # At the table's own size nothing is interpolated: the encoding is added to the keys as it is.
    (inputs,) = small.partition_inputs(tokens(hw=(7, 7)), (7, 7))
    keys = small._operands(inputs)[1].transpose(1, 2).flatten(2)
    torch.testing.assert_close(
        keys - inputs.k, small.position.weight.flatten(2).transpose(1, 2).expand(2, -1, -1)
    )


def test_mhla_normalizes_queries_and_keys_over_all_heads() -> None:
    torch.manual_seed(0)
    mixer = MHLAMixer(8, 2).double()
    (inputs,) = mixer.partition_inputs(10 * tokens(), HW)
    for t in (inputs.q, inputs.k):
        torch.testing.assert_close(t.square().mean(dim=-1), torch.ones(2, 54, dtype=torch.float64))
    # So the scale of the tokens has no effect on the weights.
    (other,) = mixer.partition_inputs(tokens(), HW)
    torch.testing.assert_close(mixer.weights(inputs), mixer.weights(other))


def test_mhla_and_circulant_attention_have_no_qkv_bias_by_default() -> None:
    for kind in (MHLAMixer, CirculantMixer):
        assert kind(8, 2).qkv.bias is None
        assert kind(8, 2, qkv_bias=True).qkv.bias is not None


@pytest.mark.parametrize(('kind', 'matrices'), [('PolaFormer', 4), ('Circulant', 8)])
def test_analysis_of_mixers_with_more_weight_matrices_than_heads(kind: str, matrices: int) -> None:
    torch.manual_seed(0)
    mixer = build_mixer({'type': kind}, 8, 2).double()
    layer, x = Layer('1', 'block 1', mixer), tokens(prefix=1)[:1]
    inputs = list(mixer.partition_inputs(x, HW))
    maps = [layer_maps(layer, inputs, [(0, 0)], (24, 36), head).weights for head in range(matrices)]
    # Every matrix is another one.
    assert all(
        not torch.allclose(maps[i], maps[j], equal_nan=True) for i in range(matrices) for j in range(i)
    )
    average = layer_maps(layer, inputs, [(0, 0)], (24, 36)).weights
    torch.testing.assert_close(torch.stack(maps).mean(dim=0), average)
    with pytest.raises(UserError, match=f'it has {matrices} heads'):
        layer_maps(layer, inputs, [(0, 0)], (24, 36), matrices)
    locality = layer_locality(mixer, inputs)
    assert locality is not None
    assert 0 < locality.attention.item() < 1


def test_masking_a_polaformer_removes_the_weight_of_neighbors() -> None:
    torch.manual_seed(0)
    mixer, x = PolaFormerMixer(8, 2).double(), tokens()
    layer = Layer('1', 'block 1', mixer)
    clean = mixer(x, HW)
    with masked_attention([layer], Mask(side=3), first_image=0):
        masked = mixer(x, HW)
    assert masked.isfinite().all()
    assert not torch.allclose(masked, clean)
    # Every key is a neighbour: no weight is left, only the convolution and the gate.
    with masked_attention([layer], Mask(side=99), first_image=0):
        (inputs,) = mixer.partition_inputs(x, HW)
        attended = mixer.attend(inputs)
        torch.testing.assert_close(attended, torch.zeros_like(attended), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ({'type': 'Agent', 'num_agents': 10}, 'num_agents 10: must be a square number'),
        ({'type': 'Agent', 'num_agents': 0}, 'num_agents 0: must be from 1 to 16384'),
        ({'type': 'Agent', 'bias_size': 0}, 'bias_size 0: must be from 1 to 1024'),
        (
            {'type': 'Agent', 'class_token': True, 'window_size': 7},
            'class_token True: not supported with windows',
        ),
        (
            {'type': 'Agent', 'sr_ratio': 2, 'split_size': 1},
            'sr_ratio 2: not supported with windows or stripes',
        ),
        ({'type': 'PolaFormer', 'alpha': -1.0}, 'alpha -1.0: must be from 0 to 15'),
        ({'type': 'PolaFormer', 'position_size': 0}, 'position_size 0: must be from 1 to 1024, or None'),
        ({'type': 'RALA', 'conv_size': 4}, 'conv_size 4: must be odd and from 1 to 63, or None'),
        (
            {'type': 'MALA', 'kernel': 'relu'},
            "unknown option 'kernel' of mixer 'MALA': it takes conv_size, gate,",
        ),
        ({'type': 'MHLA', 'grid': 0}, 'grid 0: must be from 1 to 32'),
        (
            {'type': 'MHLA', 'transform': 'sin'},
            "unknown transform 'sin': choose one of linear, cos, exp, local",
        ),
        ({'type': 'Circulant', 'gate': 1}, 'gate 1 of mixer'),
    ],
)
def test_invalid_options(config: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_mixer(config, 8, 2)


def test_polaformer_needs_an_even_number_of_channels_per_head() -> None:
    with pytest.raises(UserError, match='num_heads 2: 3 channels per head, must be even'):
        build_mixer({'type': 'PolaFormer'}, 6, 2)
