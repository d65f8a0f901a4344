"""Windows and stripes: what is cut comes back, and who may see whom is what a slow reading finds."""

import pytest
import torch

from inline.models.layers import Regions, square_windows, stripes, whole_map

CASES = [
    whole_map((5, 7)),
    square_windows((8, 12), 4, shifted=False),
    square_windows((8, 12), 4, shifted=True),
    square_windows((9, 13), 4, shifted=True),
    square_windows((9, 13), 4, shifted=True, wrap=False),
    square_windows((7, 15), 5, shifted=True, wrap=False),
    square_windows((6, 15), 7, shifted=True),
    *stripes((6, 10), 2),
    *stripes((7, 10), 3),
    *stripes((3, 3), 7),
]
EVERY = pytest.mark.parametrize('regions', CASES, ids=str)


def places(regions: Regions) -> torch.Tensor:
    """(count, n): for each place of each window, the token of the map it holds, or -1 for padding."""
    height, width = regions.hw
    numbers = torch.arange(1, height * width + 1, dtype=torch.float64)[None, :, None]
    return regions.cut(numbers).squeeze(-1).long() - 1


@EVERY
def test_what_is_cut_comes_back(regions: Regions) -> None:
    x = torch.randn(3, regions.hw[0] * regions.hw[1], 4)
    windows = regions.cut(x)
    assert windows.shape == (3 * regions.count, regions.window[0] * regions.window[1], 4)
    assert torch.equal(regions.join(windows), x)


@EVERY
def test_every_token_is_in_one_window(regions: Regions) -> None:
    tokens = places(regions)
    assert sorted(tokens[tokens >= 0].tolist()) == list(range(regions.hw[0] * regions.hw[1]))
    mask = regions.key_mask(2, torch.device('cpu'))
    expected = (tokens >= 0).repeat(2, 1)
    assert torch.equal(expected, torch.ones_like(expected) if mask is None else mask)


@EVERY
def test_only_neighbours_on_the_map_see_each_other(regions: Regions) -> None:
    """Two tokens of a window may attend if they are no further apart on the map than in the window."""
    tokens = places(regions)
    pairs = regions.pairs(torch.device('cpu'))
    window_width, map_width = regions.window[1], regions.hw[1]
    for index, window in enumerate(tokens.tolist()):
        for a, first in enumerate(window):
            for b, second in enumerate(window):
                near = (
                    first // map_width - second // map_width == a // window_width - b // window_width
                    and first % map_width - second % map_width == a % window_width - b % window_width
                )
                expected = (first >= 0 and second >= 0 and near) or a == b
                allowed = pairs is None or bool(pairs[index, a, b])
                # What padding sees does not matter, as long as it sees something.
                assert allowed == expected or (first < 0 and second >= 0)


def test_windows_reach_no_further_than_the_shorter_side() -> None:
    assert square_windows((6, 15), 7, shifted=True) == Regions((6, 15), (6, 6))
    assert square_windows((7, 7), 7, shifted=True).is_whole
    assert square_windows((8, 15), 7, shifted=True) == Regions((8, 15), (7, 7), (3, 3))


def test_shifted_windows_that_do_not_wrap_by_hand() -> None:
    """A row of seven tokens, windows of four shifted by two: two tokens, four tokens, one token."""
    regions = Regions((1, 7), (1, 4), (0, 2), wrap=False)
    assert places(regions).tolist() == [[-1, -1, 0, 1], [2, 3, 4, 5], [6, -1, -1, -1]]


def test_shifted_windows_that_wrap_by_hand() -> None:
    regions = Regions((1, 7), (1, 4), (0, 2))
    assert places(regions).tolist() == [[2, 3, 4, 5], [6, -1, 0, 1]]


@pytest.mark.parametrize('regions', [case for case in CASES if not case.is_whole], ids=str)
def test_compiled_code_has_an_operator_for_each_that_does_the_same(regions: Regions) -> None:
    """What torch.compile is told of shapes, memory and gradients is held to what the operators do."""
    numbers = ([*regions.hw], [*regions.window], [*regions.shift], regions.wrap)
    x = torch.randn(2, regions.hw[0] * regions.hw[1], 3, dtype=torch.float64, requires_grad=True)
    windows = regions.cut(x).detach().requires_grad_()
    assert torch.equal(torch.ops.inline.cut_regions(x, *numbers, 0.0), windows)
    assert torch.equal(torch.ops.inline.join_regions(windows, *numbers), x)
    for op, args in (
        (torch.ops.inline.cut_regions, (x, *numbers, 0.0)),
        (torch.ops.inline.join_regions, (windows, *numbers)),
    ):
        torch.library.opcheck(op, args)
        assert torch.autograd.gradcheck(op, args)
