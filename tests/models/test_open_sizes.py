"""What export takes where sizes are left open computes what numbers do.

The ways for open sizes are taken here with numbers, so that every size is tried without tracing: nothing is
known of a size, and all count as open.
"""

import importlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from inline.models.layers import Regions, patch_embed, position, regions, square_windows, stripes
from inline.ops import local_residual, local_residual_naive, open_sizes
from tests.models.contract import make, tokens
from tests.models.families import FAMILIES, build

# By name: the package has functions of the names of the last two.
MODULES = [
    patch_embed,
    position,
    regions,
    *(importlib.import_module(f'inline.ops.{name}') for name in ('covariance', 'local_residual')),
]
SIZES = ((1, 1), (1, 9), (4, 4), (5, 7), (7, 5), (12, 8), (13, 22))
SHIFTS = {
    'windows': {'window_size': 5},
    'shifted windows': {'window_size': 5, 'shift': True},
    'cut windows': {'window_size': 5, 'shift': True, 'wrap': False},
    'stripes': {'split_size': 6},
}


@contextmanager
def everything_open() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            for name, answer in (('known', False), ('is_open', True)):
                if hasattr(module, name):
                    patch.setattr(module, name, lambda *_, answer=answer: answer)
        # The same symbols are known to be the same, and a 0 is one.
        patch.setattr(regions, '_same', lambda a, b: a is b or a == b == (0, 0))
        yield


@pytest.mark.parametrize('hw', SIZES)
@pytest.mark.parametrize('shifted', [False, True])
@pytest.mark.parametrize('wrap', [False, True])
def test_windows_by_number_hold_the_tokens_of_windows_by_view(
    hw: tuple[int, int], shifted: bool, wrap: bool
) -> None:
    x = torch.randn(2, hw[0] * hw[1], 3)
    for size in (2, 3, 5, 8):
        by_view = square_windows(hw, size, shifted, wrap)
        cut, mask = by_view.cut(x), by_view.key_mask(2, x.device)
        with everything_open():
            by_number = square_windows(hw, size, shifted, wrap)
            assert by_number.window == by_view.window
            assert by_number.shift == by_view.shift
            places = by_number.cut(x)
            on_map = by_number.key_mask(2, x.device)
            assert on_map is not None
            torch.testing.assert_close(by_number.join(places), x, rtol=0, atol=0)
        assert on_map.equal(torch.ones_like(on_map) if mask is None else mask)
        torch.testing.assert_close(places[on_map], cut[on_map], rtol=0, atol=0)


def test_stripes_wider_than_the_map_are_whole() -> None:
    with everything_open():
        upright, level = stripes((4, 9), 6)
    assert (upright, level) == (Regions((4, 9), (4, 6)), Regions((4, 9), (6, 9)))


@pytest.mark.parametrize('kind', SHIFTS)
@pytest.mark.parametrize('name', ['InLine', 'Softmax', 'Linear'])
def test_mixers_give_the_same_in_regions_of_open_size(name: str, kind: str) -> None:
    mixer = make({'type': name}, **SHIFTS[kind])
    for hw in SIZES:
        x = tokens(hw)
        expected = mixer(x, hw, x)
        with everything_open():
            torch.testing.assert_close(mixer(x, hw, x), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize('prefix', [0, 2])
@pytest.mark.parametrize('with_bias', [False, True])
def test_the_sum_of_moved_maps_is_the_local_residual(prefix: int, with_bias: bool) -> None:
    for hw in ((1, 1), (3, 5), (6, 2)):
        v = torch.randn(3, prefix + hw[0] * hw[1], 4, dtype=torch.float64)
        weight = torch.randn(3, 4, 9, dtype=torch.float64)
        bias = torch.randn(4, dtype=torch.float64) if with_bias else None
        mask = torch.rand(3, v.shape[1]) > 0.3
        with everything_open():
            out = local_residual(v, weight, hw, bias=bias, key_mask=mask)
        expected = local_residual_naive(v, weight, hw, bias=bias, key_mask=mask)
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize('family', FAMILIES)
def test_families_give_the_same_for_images_of_open_size(family: str) -> None:
    torch.manual_seed(0)
    model = build(family).double().eval()
    for size in ((33, 47), (64, 64), (64, 96), (70, 300)):
        image = torch.randn(2, 3, *size, dtype=torch.float64)
        expected = model(image)
        with everything_open():
            torch.testing.assert_close(model(image), expected, rtol=1e-8, atol=1e-10)


def test_of_numbers_the_answers_are_pythons_own() -> None:
    assert not open_sizes.is_open(3, 4)
    assert open_sizes.known(3 < 4)
    assert not open_sizes.known(4 < 3)
    assert open_sizes.expected(7) == 7
    assert open_sizes.smallest(5, 3, 4) == 3
    for size, divisor in itertools.product(range(1, 30), range(1, 9)):
        assert open_sizes.ceil_div(size, divisor) == -(-size // divisor)
