"""The code paths for symbolic sizes compute the same as those for integers.

The paths of torch.export are run here with integers that are treated as symbolic, so that every size is
tested without tracing.
"""

import importlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from inline.models.layers import WindowPartition, patch_embed, position, stripes, swin_windows, windows
from inline.ops import local_residual, local_residual_naive, symint
from tests.models.contract import make, tokens
from tests.models.families import FAMILIES, build

# By name, because the package exports functions with the names of the last three.
MODULES = [
    patch_embed,
    position,
    windows,
    *(
        importlib.import_module(f'inline.ops.{name}')
        for name in ('inline_attention', 'local_residual', 'diag_attention')
    ),
]
SIZES = ((1, 1), (1, 9), (4, 4), (5, 7), (7, 5), (12, 8), (13, 22))
WINDOWS = {
    'windows': {'window_size': 5},
    'shifted windows': {'window_size': 5, 'shift': True},
    'shifted windows without wrap': {'window_size': 5, 'shift': True, 'wrap': False},
    'stripes': {'split_size': 6},
}


@contextmanager
def symbolic_sizes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            for name, answer in (('statically_true', False), ('is_symbolic', True)):
                if hasattr(module, name):
                    patch.setattr(module, name, lambda *_, answer=answer: answer)
        # Identical symbols are known to be equal, and a 0 is a constant.
        patch.setattr(windows, '_same', lambda a, b: a is b or a == b == (0, 0))
        yield


@pytest.mark.parametrize('hw', SIZES)
@pytest.mark.parametrize('shifted', [False, True])
@pytest.mark.parametrize('wrap', [False, True])
def test_windows_by_index_match_windows_by_view(hw: tuple[int, int], shifted: bool, wrap: bool) -> None:
    x = torch.randn(2, hw[0] * hw[1], 3)
    for size in (2, 3, 5, 8):
        by_view = swin_windows(hw, size, shifted, wrap)
        cut, mask = by_view.partition(x), by_view.key_mask(2, x.device)
        with symbolic_sizes():
            by_index = swin_windows(hw, size, shifted, wrap)
            assert by_index.window == by_view.window
            assert by_index.shift == by_view.shift
            windows_of_x = by_index.partition(x)
            on_map = by_index.key_mask(2, x.device)
            assert on_map is not None
            torch.testing.assert_close(by_index.reverse(windows_of_x), x, rtol=0, atol=0)
        assert on_map.equal(torch.ones_like(on_map) if mask is None else mask)
        torch.testing.assert_close(windows_of_x[on_map], cut[on_map], rtol=0, atol=0)


def test_stripes_wider_than_the_map_are_padded() -> None:
    with symbolic_sizes():
        upright, level = stripes((4, 9), 6)
    assert (upright, level) == (WindowPartition((4, 9), (4, 6)), WindowPartition((4, 9), (6, 9)))


@pytest.mark.parametrize('kind', WINDOWS)
@pytest.mark.parametrize('name', ['InLine', 'Softmax', 'Linear', 'DiagAttention'])
def test_mixers_with_symbolic_sizes(name: str, kind: str) -> None:
    mixer = make({'type': name}, **WINDOWS[kind])
    for hw in SIZES:
        x = tokens(hw)
        expected = mixer(x, hw, x)
        with symbolic_sizes():
            torch.testing.assert_close(mixer(x, hw, x), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize('prefix', [0, 2])
@pytest.mark.parametrize('with_bias', [False, True])
def test_local_residual_with_symbolic_batch(prefix: int, with_bias: bool) -> None:
    for hw in ((1, 1), (3, 5), (6, 2)):
        v = torch.randn(3, prefix + hw[0] * hw[1], 4, dtype=torch.float64)
        weight = torch.randn(3, 4, 9, dtype=torch.float64)
        bias = torch.randn(4, dtype=torch.float64) if with_bias else None
        mask = torch.rand(3, v.shape[1]) > 0.3
        with symbolic_sizes():
            out = local_residual(v, weight, hw, bias=bias, key_mask=mask)
        expected = local_residual_naive(v, weight, hw, bias=bias, key_mask=mask)
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize('family', FAMILIES)
def test_families_with_symbolic_sizes(family: str) -> None:
    torch.manual_seed(0)
    model = build(family).double().eval()
    for size in ((33, 47), (64, 64), (64, 96), (70, 300)):
        image = torch.randn(2, 3, *size, dtype=torch.float64)
        expected = model(image)
        with symbolic_sizes():
            torch.testing.assert_close(model(image), expected, rtol=1e-8, atol=1e-10)


def test_functions_of_integers() -> None:
    assert not symint.is_symbolic(3, 4)
    assert symint.statically_true(3 < 4)
    assert not symint.statically_true(4 < 3)
    assert symint.size_hint(7) == 7
    assert symint.sym_min(5, 3) == 3
    assert symint.sym_max(5, 3) == 5
    for size, divisor in itertools.product(range(1, 30), range(1, 9)):
        assert symint.ceil_div(size, divisor) == -(-size // divisor)
