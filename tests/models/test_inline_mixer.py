"""The InLine mixer on both code paths: with queries and keys, and from the tokens where they are many."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inline.models.mixers import AttentionInputs, InLineMixer
from inline.ops import inline_attention_naive, local_residual_naive

HW = (6, 12)
# 72 tokens, 36 per window, 18 or 36 per stripe: enough for the fast path with 8 channels.
FAST: dict[str, dict[str, Any]] = {
    'whole map': {},
    'no bias': {'qkv_bias': False},
    'windows': {'window_size': 6},
    'stripes': {'split_size': 3, 'lepe': True},
    'position term': {'lepe': True},
    'no residual': {'residual': False},
}
# These need queries and keys for any number of tokens.
SLOW: dict[str, dict[str, Any]] = {
    'relu': {'kernel': 'relu'},
    'division': {'injective': False, 'kernel': 'elu'},
    'padded windows': {'window_size': 5},
}


def make(**options: Any) -> InLineMixer:
    torch.manual_seed(0)
    mixer = InLineMixer(8, 2, **options).double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def tokens(hw: tuple[int, int] = HW, prefix: int = 0) -> Tensor:
    shape = (2, prefix + hw[0] * hw[1], 8)
    return 1 + torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def naive_forward(mixer: InLineMixer, x: Tensor, hw: tuple[int, int]) -> Tensor:
    """Compute the mixer with the naive ops, from explicit queries and keys."""
    q, k, v = mixer.qkv(x).chunk(3, dim=-1)
    partitions = mixer.window_partitions(x, hw)
    width = x.shape[-1] // len(partitions)
    outs = []
    for i, windows in enumerate(partitions):
        channels = slice(i * width, (i + 1) * width)
        heads = mixer.num_heads // len(partitions)
        own = [windows.partition(t[..., channels]) for t in (q, k, v)]
        qkv = [t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in own]
        out = inline_attention_naive(*qkv).transpose(1, 2).flatten(2)
        if mixer.residual is not None:
            kernels = mixer.residual(windows.partition(x).mean(dim=1))[:, channels]
            local = local_residual_naive(own[2], kernels, windows.window)
            out = out + F.pad(local, (0, 0, out.shape[1] - local.shape[1], 0))
        if mixer.lepe is not None:
            lepe = mixer.lepe(own[2], windows.window, channels)
            out = out + F.pad(lepe, (0, 0, out.shape[1] - lepe.shape[1], 0))
        outs.append(windows.reverse(out))
    return mixer.proj(torch.cat(outs, dim=-1))


@pytest.mark.parametrize('prefix', [0, 1])
@pytest.mark.parametrize('kind', FAST)
@pytest.mark.parametrize('hw', [HW, (12, 6), (1, 3)])
def test_outputs_and_gradients_match_the_naive_ops(hw: tuple[int, int], kind: str, prefix: int) -> None:
    """On maps with many and with few tokens, which take different code paths."""
    mixer = make(**FAST[kind])
    full_map = mixer.window_size is None and mixer.split_size is None
    results = []
    for forward in (mixer, lambda *args: naive_forward(mixer, *args)):
        x = tokens(hw, prefix if full_map else 0).requires_grad_()
        out = forward(x, hw)
        cotangent = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(2))
        results.append((out, *torch.autograd.grad(out, [x, *mixer.parameters()], cotangent)))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize('kind', [*FAST, *SLOW])
def test_queries_and_keys_are_computed_only_where_needed(kind: str) -> None:
    mixer = make(**{**FAST, **SLOW}[kind])
    calls = []
    for inputs in mixer.partition_inputs(tokens(), HW):
        counted = replace(inputs, make_qk=lambda inputs=inputs: calls.append(1) or inputs.make_qk())
        mixer.attend(counted)
        mixer.local(counted)
    assert bool(calls) == (kind in SLOW)


@pytest.mark.parametrize(('hw', 'prefix'), [(HW, 0), (HW, 1), ((2, 3), 0)])
def test_attend_applies_the_weights_to_replaced_values(hw: tuple[int, int], prefix: int) -> None:
    """On both code paths, attend() uses the values of its inputs."""
    mixer = make()
    (inputs,) = mixer.partition_inputs(tokens(hw, prefix), hw)
    other = replace(inputs, v=torch.randn_like(inputs.v))
    expected = (mixer.weights(inputs) @ other.heads()[2]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mixer.attend(other), expected, rtol=1e-10, atol=1e-12)


def test_instance_level_attend_is_used() -> None:
    """Masked analysis replaces attend() this way."""
    mixer, x = make(residual=False), tokens()
    with mock.patch.object(mixer, 'attend', lambda inputs: torch.zeros_like(inputs.v)):
        torch.testing.assert_close(mixer(x, HW), mixer.proj.bias.expand_as(x))


SMALL = (2, 4)


@pytest.mark.parametrize('prefix', [0, 1])
@pytest.mark.parametrize('bias', [False, True])
def test_a_single_image_of_few_tokens_matches_the_naive_ops(bias: bool, prefix: int) -> None:
    mixer, x = make(qkv_bias=bias), tokens(SMALL, prefix)[:1]
    with torch.no_grad(), mock.patch.object(mixer, 'attend', wraps=mixer.attend) as general:
        expected = mixer(x, SMALL)
        assert general.called
    with torch.no_grad(), mock.patch.object(InLineMixer, 'attend') as general:
        out = mixer(x, SMALL)
        assert not general.called
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(out, naive_forward(mixer, x, SMALL), rtol=1e-10, atol=1e-12)


class Negated(InLineMixer):
    def attend(self, inputs: AttentionInputs) -> Tensor:
        return -super().attend(inputs)


GENERAL: dict[str, Callable[[], tuple[InLineMixer, Tensor]]] = {
    'several images': lambda: (make(), tokens(SMALL)),
    'many tokens': lambda: (make(), tokens()[:1]),
    'windows': lambda: (make(window_size=2), tokens(SMALL)[:1]),
    'stripes': lambda: (make(split_size=1), tokens(SMALL)[:1]),
    'position term': lambda: (make(lepe=True), tokens(SMALL)[:1]),
    'no residual': lambda: (make(residual=False), tokens(SMALL)[:1]),
    'mean before the norm': lambda: (make(mean_before_norm=True), tokens(SMALL)[:1]),
    'relu': lambda: (make(kernel='relu'), tokens(SMALL)[:1]),
    'division': lambda: (make(kernel='elu', injective=False), tokens(SMALL)[:1]),
    'bfloat16': lambda: (make().bfloat16(), tokens(SMALL)[:1].bfloat16()),
}


@pytest.mark.parametrize('kind', GENERAL)
def test_other_inputs_do_not_take_the_path_of_a_single_image(kind: str) -> None:
    mixer, x = GENERAL[kind]()
    hw = HW if kind == 'many tokens' else SMALL
    with torch.no_grad(), mock.patch.object(InLineMixer, 'attend', autospec=True) as general:
        general.side_effect = lambda _, inputs: inputs.v.clone()
        mixer(x, hw, x)
    assert general.called


@pytest.fixture
def restored_precision() -> Iterator[None]:
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    yield
    matmul.fp32_precision = before


@pytest.mark.usefixtures('restored_precision')
def test_gradients_autocast_and_rounded_products_do_not_take_the_path_of_a_single_image() -> None:
    mixer, x = make().float(), tokens(SMALL)[:1].float()
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with mock.patch.object(mixer, '_forward_image', wraps=mixer._forward_image) as of_image:
        mixer(x, SMALL)
        with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):
            mixer(x, SMALL)
        with torch.no_grad():
            torch.func.vmap(mixer, in_dims=(0, None))(x[None], SMALL)
        assert not of_image.called
        with torch.no_grad():
            mixer(x, SMALL)
            assert of_image.call_count == 1
            matmul.fp32_precision = 'bf16'
            mixer(x, SMALL)
        assert of_image.call_count == 1


def test_a_mixer_of_a_user_keeps_its_attend() -> None:
    torch.manual_seed(0)
    ours, negated = make(), Negated(8, 2).double()
    negated.load_state_dict(ours.state_dict())
    x = tokens(SMALL)[:1]
    with torch.no_grad():
        assert not torch.allclose(ours(x, SMALL), negated(x, SMALL))


def test_changed_layers_of_a_single_image_are_called() -> None:
    """Hooks of all layers run, with the outputs that training would give them."""
    mixer, x = make(), tokens(SMALL)[:1]
    for name, layer in mixer.named_modules():
        if not name:
            continue
        handle = layer.register_forward_hook(lambda _module, _args, out: 2 * out)
        expected = mixer(x, SMALL)
        with torch.no_grad():
            torch.testing.assert_close(mixer(x, SMALL), expected, rtol=1e-10, atol=1e-12, msg=name)
        handle.remove()


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('kernel', ['identity', 'relu'])
def test_half_precision_on_a_large_image(kernel: str, dtype: torch.dtype) -> None:
    """65,536 tokens are an image of 1024×1024 at stride 4; a sum over them would overflow float16."""
    torch.manual_seed(0)
    mixer, hw = InLineMixer(16, 2, kernel=kernel), (256, 256)
    # Means as large as the spread, where a difference of rounded products would be inaccurate.
    x = 2 * torch.randn(1, hw[0] * hw[1], 16) + 2
    with torch.no_grad():
        exact = mixer(x, hw)
        with torch.autocast('cpu', dtype):
            (inputs,) = mixer.partition_inputs(x, hw)
            attended, out = mixer.attend(inputs).float(), mixer(x, hw).float()
        (inputs,) = mixer.partition_inputs(x, hw)
        exact_attended = mixer.attend(inputs)
    for ours, expected in ((out, exact), (attended, exact_attended)):
        assert ours.isfinite().all()
        assert (ours - expected).norm() <= 1e-2 * expected.norm()
