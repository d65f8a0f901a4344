"""Window partition: reverse inverts partition, and masks match a direct computation."""

import pytest
import torch

from inline.models.layers import WindowPartition, full_map, stripes, swin_windows

CASES = [
    full_map((5, 7)),
    swin_windows((8, 12), 4, shifted=False),
    swin_windows((8, 12), 4, shifted=True),
    swin_windows((9, 13), 4, shifted=True),
    swin_windows((9, 13), 4, shifted=True, wrap=False),
    swin_windows((7, 15), 5, shifted=True, wrap=False),
    swin_windows((6, 15), 7, shifted=True),
    *stripes((6, 10), 2),
    *stripes((7, 10), 3),
    *stripes((3, 3), 7),
]
EVERY = pytest.mark.parametrize('partition', CASES, ids=str)


def token_indices(partition: WindowPartition) -> torch.Tensor:
    """Return (num_windows, n): the map token at each position of each window, or -1 for padding."""
    height, width = partition.hw
    numbers = torch.arange(1, height * width + 1, dtype=torch.float64)[None, :, None]
    return partition.partition(numbers).squeeze(-1).long() - 1


@EVERY
def test_reverse_inverts_partition(partition: WindowPartition) -> None:
    x = torch.randn(3, partition.hw[0] * partition.hw[1], 4)
    windows = partition.partition(x)
    assert windows.shape == (3 * partition.num_windows, partition.window[0] * partition.window[1], 4)
    assert torch.equal(partition.reverse(windows), x)


@EVERY
def test_every_token_is_in_exactly_one_window(partition: WindowPartition) -> None:
    tokens = token_indices(partition)
    assert sorted(tokens[tokens >= 0].tolist()) == list(range(partition.hw[0] * partition.hw[1]))
    mask = partition.key_mask(2, torch.device('cpu'))
    expected = (tokens >= 0).repeat(2, 1)
    assert torch.equal(expected, torch.ones_like(expected) if mask is None else mask)


@EVERY
def test_attention_mask_allows_tokens_that_are_adjacent_on_the_map(partition: WindowPartition) -> None:
    """Two tokens of a window may attend if their offset on the map equals their offset in the window."""
    tokens = token_indices(partition)
    mask = partition.attention_mask(torch.device('cpu'))
    window_width, map_width = partition.window[1], partition.hw[1]
    for index, window in enumerate(tokens.tolist()):
        for a, first in enumerate(window):
            for b, second in enumerate(window):
                near = (
                    first // map_width - second // map_width == a // window_width - b // window_width
                    and first % map_width - second % map_width == a % window_width - b % window_width
                )
                expected = (first >= 0 and second >= 0 and near) or a == b
                allowed = mask is None or bool(mask[index, a, b])
                # The keys of a padded query do not matter, as long as there is one.
                assert allowed == expected or (first < 0 and second >= 0)


def test_windows_are_limited_by_the_shorter_side() -> None:
    assert swin_windows((6, 15), 7, shifted=True) == WindowPartition((6, 15), (6, 6))
    assert swin_windows((7, 7), 7, shifted=True).is_full_map
    assert swin_windows((8, 15), 7, shifted=True) == WindowPartition((8, 15), (7, 7), (3, 3))


def test_shifted_windows_without_wrap_by_hand() -> None:
    """A row of seven tokens, windows of four shifted by two: two tokens, four tokens, one token."""
    partition = WindowPartition((1, 7), (1, 4), (0, 2), wrap=False)
    assert token_indices(partition).tolist() == [[-1, -1, 0, 1], [2, 3, 4, 5], [6, -1, -1, -1]]


def test_shifted_windows_with_wrap_by_hand() -> None:
    partition = WindowPartition((1, 7), (1, 4), (0, 2))
    assert token_indices(partition).tolist() == [[2, 3, 4, 5], [6, -1, 0, 1]]


# Padded with and without wrap, and stripes: opcheck takes seconds per case.
@pytest.mark.slow
@pytest.mark.parametrize('partition', [CASES[3], CASES[4], CASES[9]], ids=str)
def test_custom_operators_match_eager_code(partition: WindowPartition) -> None:
    """Shapes, aliasing and gradients that torch.compile sees are those of the operators."""
    sizes = (partition._sizes, partition.wrap)
    x = torch.randn(2, partition.hw[0] * partition.hw[1], 3, dtype=torch.float64, requires_grad=True)
    windows = partition.partition(x).detach().requires_grad_()
    assert torch.equal(torch.ops.inline.window_partition(x, *sizes, 0.0), windows)
    assert torch.equal(torch.ops.inline.window_reverse(windows, *sizes), x)
    device = torch.device('cpu')
    pairs = torch.ops.inline.window_mask(*sizes, True, device)
    assert torch.equal(pairs, partition.attention_mask(device))
    assert torch.equal(torch.ops.inline.window_mask(*sizes, False, device), partition.key_mask(1, device))
    for op, args in (
        (torch.ops.inline.window_partition, (x, *sizes, 0.0)),
        (torch.ops.inline.window_reverse, (windows, *sizes)),
    ):
        torch.library.opcheck(op, args)
        assert torch.autograd.gradcheck(op, args)
