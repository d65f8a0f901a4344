"""The covariance where float32 products round their operands: TF32 emulated, and bfloat16 on a real CPU."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from inline.models.mixers import InLineMixer
from inline.ops import inline_attention, inline_attention_from_tokens, inline_attention_naive
from inline.ops.inline_attention import covariance, inline_attention_from_tokens_naive

# The package exports a function of the same name.
OP_MODULE = sys.modules['inline.ops.inline_attention']
PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
}
# Bits of float32 that TF32 drops: 23 − 10 of the mantissa.
DROPPED = 13


def round_to_tf32(x: Tensor) -> Tensor:
    """Round float32 to 10 mantissa bits, to nearest, ties to even."""
    bits = x.contiguous().view(torch.int32)
    bits = bits + (2 ** (DROPPED - 1) - 1) + ((bits >> DROPPED) & 1)
    return (bits >> DROPPED << DROPPED).view(torch.float32)


class TF32(TorchDispatchMode):
    """Round the factors of all float32 matrix products, forward and backward, as a GPU with TF32 does."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS:
            self.count += 1
            # A summand comes before the two factors and is not rounded.
            factors = [round_to_tf32(x) if x.dtype == torch.float32 else x for x in args[-2:]]
            args = (*args[:-2], *factors)
        return func(*args, **(kwargs or {}))


class ProductRecorder(TorchDispatchMode):
    """Record the names of the matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS:
            self.products.append(func._schema.name.removeprefix('aten::'))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def tf32_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OP_MODULE, 'rounds_products', lambda _: True)


@pytest.fixture
def restored_precision() -> Iterator[None]:
    yield
    # The setters of torch that name a backend and those that do not must agree before both can be used.
    torch.backends.cuda.matmul.fp32_precision = 'ieee'
    torch.set_float32_matmul_precision('highest')


def tokens_with_large_mean(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return correlated tokens of standard deviation 1 and mean 30."""
    torch.manual_seed(0)
    x = torch.randn(*shape, dtype=torch.float64)
    x = (x + x.roll(1, dims=-1)) / 2**0.5
    return (30 + x).to(dtype)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


def covariance_of(x: Tensor) -> Tensor:
    return covariance(x, x.flip(-1))[0]


def test_rounding_keeps_ten_bits() -> None:
    values = torch.tensor([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-12), 0.0])
    expected = torch.tensor([1 + 2**-10, 1.0, 1 + 2**-9, -1.0, 0.0])
    assert torch.equal(round_to_tf32(values), expected)


@pytest.mark.parametrize('num_tokens', [196, 4096])
def test_covariance_is_accurate_in_tf32(num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Centring is needed: without it the same tokens lose more than 1 %."""
    x = tokens_with_large_mean(2, num_tokens, 32)
    expected = covariance_of(x.double())
    errors = []
    for is_on in (False, True):
        monkeypatch.setattr(OP_MODULE, 'rounds_products', lambda _, is_on=is_on: is_on)
        with TF32() as mode:
            errors.append(relative_error(covariance_of(x), expected))
        assert mode.count == 1
    assert errors[0] > 0.01
    assert errors[1] < 0.001


@pytest.mark.usefixtures('tf32_is_on')
def test_gradients_of_the_covariance_are_accurate_in_tf32() -> None:
    x = tokens_with_large_mean(2, 784, 32)
    gradients = []
    weight = torch.randn(2, 32, 32, dtype=torch.float64)
    for tokens in (x, x.double()):
        leaf = tokens.clone().requires_grad_()
        with TF32() as mode:
            (covariance_of(leaf) * weight.to(leaf.dtype)).sum().backward()
        assert mode.count == 3
        gradients.append(leaf.grad)
    assert relative_error(gradients[0], gradients[1]) < 0.01


@pytest.mark.usefixtures('tf32_is_on')
def test_centred_form_in_float32_agrees_with_the_naive_reference() -> None:
    """Without rounding, both forms compute the same."""
    torch.manual_seed(0)
    x, v = torch.randn(2, 60, 16), torch.randn(2, 60, 16)
    w_q, w_k, b_q = torch.randn(16, 16), torch.randn(16, 16), torch.randn(16)
    torch.testing.assert_close(
        inline_attention_from_tokens(x, v, w_q, w_k, b_q, num_heads=4),
        inline_attention_from_tokens_naive(x, v, w_q, w_k, b_q, num_heads=4),
        rtol=1e-4,
        atol=1e-4,
    )
    q, k, heads_v = torch.randn(3, 2, 4, 60, 8)
    torch.testing.assert_close(
        inline_attention(q, k, heads_v), inline_attention_naive(q, k, heads_v), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ('device', 'settings', 'is_centred'),
    [
        ('cuda', {}, False),
        ('cuda', {'cuda': 'tf32'}, True),
        ('cuda', {'all': 'high'}, True),
        ('cuda', {'all': 'medium'}, True),
        ('cpu', {}, False),
        ('cpu', {'all': 'medium'}, True),
        ('cpu', {'cuda': 'tf32'}, False),
    ],
)
@pytest.mark.usefixtures('restored_precision')
def test_the_form_follows_the_settings_of_torch(
    device: str, settings: dict[str, str], is_centred: bool
) -> None:
    """Fake tensors on a GPU: the form shows in the products that would run there.

    Only the uncentred form subtracts within the product; in float64 it is always used.
    """
    if 'all' in settings:
        torch.set_float32_matmul_precision(settings['all'])
    if 'cuda' in settings:
        torch.backends.cuda.matmul.fp32_precision = settings['cuda']
    recorder = ProductRecorder()
    with FakeTensorMode(), recorder:
        covariance_of(torch.empty(2, 60, 16, device=device))
        covariance_of(torch.empty(2, 60, 16, device=device, dtype=torch.float64))
    used = ['bmm' if is_centred else 'baddbmm', 'baddbmm']
    assert recorder.products == used


@pytest.mark.usefixtures('restored_precision')
def test_covariance_is_accurate_with_bfloat16_products_of_a_cpu() -> None:
    """``torch.set_float32_matmul_precision('medium')`` rounds to bfloat16 where the CPU supports it."""
    x = tokens_with_large_mean(2, 784, 64)
    expected = covariance_of(x.double())
    torch.set_float32_matmul_precision('medium')
    assert relative_error(covariance_of(x), expected) < 0.01


def test_compiled_mixer_reads_no_setting() -> None:
    """torch.compile cannot trace the getter of the setting."""
    torch.manual_seed(0)
    mixer, x = InLineMixer(16, 2), torch.randn(2, 30, 16)
    compiled = torch.compile(mixer, fullgraph=True, backend='eager')
    torch.testing.assert_close(compiled(x, (5, 6)), mixer(x, (5, 6)))
