"""The baseline ops: naive references, masks, properties from their papers, examples by hand."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inline.ops import (
    cosformer_attention,
    cosformer_attention_naive,
    cosformer_attention_weights,
    diag_attention,
    diag_attention_naive,
    diag_attention_weights,
    efficient_attention,
    efficient_attention_naive,
    efficient_attention_weights,
    flatten_attention,
    flatten_attention_naive,
    flatten_attention_weights,
    mlla_attention,
    mlla_attention_naive,
    mlla_attention_weights,
    nystrom_attention,
    nystrom_attention_naive,
    nystrom_attention_weights,
    softmax_attention_naive,
    softmax_attention_weights,
    transnormer_attention,
    transnormer_attention_naive,
    transnormer_attention_weights,
)
from inline.ops.flatten_attention import focus
from inline.ops.mlla_attention import rotate
from inline.ops.nystrom_attention import compute_landmarks, pseudo_inverse
from inline.ops.transnormer_attention import RelativePosition, initial_angles
from tests.ops.test_naive_references import MAPS, assert_matches_reference, make_mask, make_qkv

Op = Callable[..., Tensor]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_lrpe(op: Op) -> Op:
    """Return NormAttention T1 with LRPE; the angles are the same in every call."""

    def attend(q: Tensor, *args: Any, **options: Any) -> Tensor:
        dim = q.shape[-1]
        position = RelativePosition(F.normalize(randn(dim), dim=0), randn(dim // 2, seed=1))
        return op(q, *args, variant='T1', position=position, **options)

    return attend


# Fast op, naive reference, and whether the op takes the size of the map.
OPS: dict[str, tuple[Op, Op, bool]] = {
    'cosformer': (cosformer_attention, cosformer_attention_naive, True),
    'diag': (partial(diag_attention, block_size=4), partial(diag_attention_naive, block_size=4), False),
    'efficient': (efficient_attention, efficient_attention_naive, False),
    'flatten': (flatten_attention, flatten_attention_naive, False),
    'mlla': (mlla_attention, mlla_attention_naive, True),
    'nystrom': (
        partial(nystrom_attention, num_landmarks=4),
        partial(nystrom_attention_naive, num_landmarks=4),
        False,
    ),
    'nystrom batch': (
        partial(nystrom_attention, num_landmarks=4, inverse_init='batch'),
        partial(nystrom_attention_naive, num_landmarks=4, inverse_init='batch'),
        False,
    ),
    'transnormer': (transnormer_attention, transnormer_attention_naive, True),
    'transnormer lrpe': (with_lrpe(transnormer_attention), with_lrpe(transnormer_attention_naive), True),
}
# Blocks of tokens are formed before tokens are masked.
SHORTENED = [name for name, (_, _, takes_map) in OPS.items() if not takes_map and name != 'diag']


def column(*values: float) -> Tensor:
    """Return tokens of one channel, (1, 1, N, 1)."""
    return torch.tensor(values, dtype=torch.float64).view(1, 1, -1, 1)


def tokens(*rows: tuple[float, ...]) -> Tensor:
    """Return tokens of one head, (1, 1, N, d)."""
    return torch.tensor(rows, dtype=torch.float64)[None, None]


@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize(('batch', 'heads', 'dim'), [(1, 1, 4), (3, 2, 4), (2, 3, 2)])
@pytest.mark.parametrize(('hw', 'prefix'), list(product(MAPS, (0, 2))))
@pytest.mark.parametrize('name', OPS)
def test_fast_op_matches_reference(
    name: str, hw: tuple[int, int], prefix: int, batch: int, heads: int, dim: int, masked: bool
) -> None:
    fast, naive, takes_map = OPS[name]
    count = prefix + hw[0] * hw[1]
    mask = make_mask(batch, count) if masked else None
    map_size = (hw,) if takes_map else ()
    assert_matches_reference(
        lambda *qkv: fast(*qkv, *map_size, key_mask=mask),
        lambda *qkv: naive(*qkv, *map_size, key_mask=mask),
        make_qkv(batch, heads, count, dim),
    )


@pytest.mark.parametrize('naive', [False, True])
@pytest.mark.parametrize('name', OPS)
def test_values_of_masked_tokens_have_no_effect(name: str, naive: bool) -> None:
    """NaN in masked tokens does not reach other outputs, and NaN in masked keys and values no gradient."""
    op, takes_map = OPS[name][int(naive)], OPS[name][2]
    map_size = ((2, 5),) if takes_map else ()
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[0, 6:], mask[1, 2:4] = False, False
    clean = make_qkv(2, 2, 10)
    dirty = [x.masked_fill(~mask[:, None, :, None], float('nan')).requires_grad_() for x in clean]
    kept = mask[:, None, :, None].expand(2, 2, 10, 4)
    out, expected = (op(*qkv, *map_size, key_mask=mask)[kept] for qkv in (dirty, clean))
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    leaves = [clean[0].requires_grad_(), *dirty[1:]]
    for gradient in torch.autograd.grad(op(*leaves, *map_size, key_mask=mask)[kept].sum(), leaves):
        assert gradient.isfinite().all()


@pytest.mark.parametrize('name', SHORTENED)
def test_masked_tokens_equal_a_shorter_sequence(name: str) -> None:
    q, k, v = make_qkv(2, 2, 12)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[:, [0, 3, 4, 11]] = False
    short = [x[:, :, mask[0]] for x in (q, k, v)]
    out = OPS[name][0](q, k, v, key_mask=mask)[:, :, mask[0]]
    torch.testing.assert_close(out, OPS[name][0](*short), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('name', OPS)
def test_half_precision_is_accurate_over_many_tokens(name: str, dtype: torch.dtype) -> None:
    op, _, takes_map = OPS[name]
    map_size = ((128, 128),) if takes_map else ()
    q, k, v = (3 * randn(1, 1, 128 * 128, 8, seed=i).float() for i in range(3))
    # A mean far from zero, else the outputs are noise around zero.
    v = v + 3
    exact = op(q, k, v, *map_size)
    half = op(q.to(dtype), k.to(dtype), v.to(dtype), *map_size).float()
    assert (half - exact).norm() <= 2e-2 * exact.norm()


def test_efficient_attention_by_hand() -> None:
    """The query's softmax is 1/4, 3/4; the keys' are 1/4, 3/4 in one channel and 1/2, 1/2 in the other.

    So w = 1/16 + 3/8, 3/16 + 3/8 = 7/16, 9/16, and values 16 and 32 give 7 + 18 = 25.
    """
    q, k, v = tokens((0, math.log(3))), tokens((0, 0), (math.log(3), 0)), column(16, 32)
    assert efficient_attention_weights(q, k).flatten().tolist() == pytest.approx([7 / 16, 9 / 16])
    assert efficient_attention(q, k, v).item() == pytest.approx(25)


@settings(deadline=None, max_examples=40)
@given(count=st.integers(1, 30), spread=st.floats(0.01, 50), seed=st.integers(0, 2**31))
def test_efficient_weights_are_positive_and_sum_to_one(count: int, spread: float, seed: int) -> None:
    q, k = spread * randn(2, 2, 5, 4, seed=seed), spread * randn(2, 2, count, 4, seed=seed + 1)
    weights = efficient_attention_weights(q, k)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, 5, dtype=torch.float64))


def test_transnormer_attention_by_hand() -> None:
    """φ(0) = 1, φ(1) = 2, two heads of two channels.

    The first gives ((3, 0) + 2·(0, 2)) / 2 = (1.5, 2), the second, whose keys are both 0, (0, (4 + 6) / 2) =
    (0, 5). The mean square of all four is (2.25 + 4 + 0 + 25) / 4 = 7.8125.
    """
    q, k = torch.cat([column(0), column(0)], dim=1), torch.cat([column(0, 1), column(0, 0)], dim=1)
    v = torch.cat([tokens((3, 0), (0, 2)), tokens((0, 4), (0, 6))], dim=1)
    rms = math.sqrt(7.8125)
    expected = [1.5 / rms, 2 / rms, 0, 5 / rms]
    for op in (transnormer_attention, transnormer_attention_naive):
        assert op(q[:, :, [0, 0]], k, v, (1, 2))[:, :, 0].flatten().tolist() == pytest.approx(expected)
    weights = transnormer_attention_weights(q[:, :, [0, 0]], k, v, (1, 2))[:, :, 0].flatten().tolist()
    assert weights == pytest.approx([0.5 / rms, 1 / rms, 0.5 / rms, 0.5 / rms])


def test_transnormer_outputs_have_unit_rms_for_any_scale_of_the_values() -> None:
    q, k, v = (randn(2, 3, 12, 8, seed=i) for i in range(3))
    out = transnormer_attention(q, k, v + 1, (3, 4))
    sizes = out.square().mean(dim=(1, 3))
    torch.testing.assert_close(sizes, torch.ones(2, 12, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(transnormer_attention(q, k, 10 * (v + 1), (3, 4)), out, rtol=0, atol=1e-6)


def test_transnormer_epsilon_stands_beside_the_root_mean_square_of_the_sum() -> None:
    """φ(0) = 1 in T2: four values of 2.5e-9 sum to 1e-8, so half of the divisor is ε."""
    zeros, v = torch.zeros(1, 1, 4, 1, dtype=torch.float64), column(*[2.5e-9] * 4)
    for op in (transnormer_attention, transnormer_attention_naive):
        assert op(zeros, zeros, v, (2, 2)).flatten().tolist() == pytest.approx([0.5] * 4)
        # elu(0) = 0 in T1, so there is nothing to normalise; the gradient is finite.
        out = op(zeros, zeros, v.clone().requires_grad_(), (2, 2), variant='T1')
        assert not out.any()
    leaf = zeros.clone().requires_grad_()
    gradient = torch.autograd.grad(transnormer_attention(leaf, leaf, v, (2, 2), variant='T1').sum(), leaf)
    assert gradient[0].isfinite().all()


def test_lrpe_by_hand() -> None:
    """Points (1, 0) with elu((1, 0)) = (1, 0); the reflection at u = (1, 0) turns them into (−1, 0).

    Two steps apart they are rotated by 2θ = π/3 against each other, so their product is 1/2. A reflection of
    all tokens has no effect if the rotated pair is the whole space. The class token is not rotated.
    """
    x, v = tokens(*[(1.0, 0.0)] * 4), torch.eye(4, dtype=torch.float64)[None, None]
    u = torch.tensor([1.0, 0.0], dtype=torch.float64)
    position = RelativePosition(u, torch.tensor([math.pi / 6], dtype=torch.float64))
    weights = transnormer_attention_weights(x, x, v, (1, 3), variant='T1', position=position)[0, 0]
    row = [1, 1, math.cos(math.pi / 6), 0.5]
    rms = math.sqrt(sum(w * w for w in row) / 4)
    assert weights[1].tolist() == pytest.approx([w / rms for w in row])
    assert weights[0].tolist() == pytest.approx(weights[1].tolist())


def test_initial_angles_of_lrpe() -> None:
    assert initial_angles(4).tolist() == pytest.approx([1, 0.01])
    assert initial_angles(5).tolist() == pytest.approx([1, 10000**-0.4])
    assert initial_angles(1).shape == (0,)


def test_diag_attention_by_hand() -> None:
    """Blocks of two tokens, of which the last has one: equal scores give means within a block."""
    zeros, v = torch.zeros(1, 1, 5, 1, dtype=torch.float64), column(1, 3, 10, 20, 7)
    assert diag_attention(zeros, zeros, v, block_size=2).flatten().tolist() == [2, 2, 15, 15, 7]
    weights = diag_attention_weights(zeros, zeros, block_size=2, queries=slice(2, 3)).flatten().tolist()
    assert weights == [0, 0, 0.5, 0.5, 0]
    whole = diag_attention(*make_qkv(2, 2, 6), block_size=64)
    torch.testing.assert_close(whole, softmax_attention_naive(*make_qkv(2, 2, 6)))


@pytest.mark.parametrize('naive', [False, True])
@pytest.mark.parametrize('name', [name for name in OPS if not name.startswith('nystrom')])
def test_an_image_without_keys_gets_zero(name: str, naive: bool) -> None:
    """Its gradients are finite, and other images are not affected."""
    op, map_size = OPS[name][int(naive)], ((3, 4),) if OPS[name][2] else ()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1] = False
    qkv = [x.requires_grad_() for x in make_qkv(2, 2, 12)]
    out = op(*qkv, *map_size, key_mask=mask)
    assert not out[1].any()
    torch.testing.assert_close(out[:1], op(*(x[:1] for x in qkv), *map_size))
    # The square root in the definition of NormAttention has no gradient at 0.
    if not naive:
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), qkv))


def test_cosformer_sum_of_scores_has_a_lower_limit() -> None:
    """A single key with score 1e-8 gets the weight 1e-8 / 1e-6; with score 1e-2 it gets 1."""
    for score, expected in ((1e-8, 0.01), (1e-2, 1.0)):
        q, k = column(score), column(1)
        assert cosformer_attention_weights(q, k, (1, 1)).item() == pytest.approx(expected)
        for op in (cosformer_attention, cosformer_attention_naive):
            assert op(q, k, column(5), (1, 1)).item() == pytest.approx(5 * expected)


def test_cosformer_attention_by_hand() -> None:
    """Equal tokens at angles 0 and π/4, and a class token between them at π/8."""
    ones, near = torch.ones(1, 1, 3, 1, dtype=torch.float64), math.cos(math.pi / 8)
    between = math.cos(math.pi / 4)
    expected = [
        [1 / (1 + 2 * near), near / (1 + 2 * near), near / (1 + 2 * near)],
        [near / (1 + near + between), 1 / (1 + near + between), between / (1 + near + between)],
        [near / (1 + near + between), between / (1 + near + between), 1 / (1 + near + between)],
    ]
    weights = cosformer_attention_weights(ones, ones, (1, 2))[0, 0]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=0)
    out = cosformer_attention(ones, ones, column(0, 10, 20), (1, 2))[0, 0, 1].item()
    assert out == pytest.approx((10 + 20 * between) / (1 + near + between), rel=1e-5)


def test_cosformer_favors_nearby_keys_in_row_major_order() -> None:
    ones = torch.ones(1, 1, 12, 2, dtype=torch.float64)
    weights = cosformer_attention_weights(ones, ones, (3, 4))[0, 0]
    for query in range(12):
        by_distance = weights[query, sorted(range(12), key=lambda key: abs(key - query))]
        assert (by_distance.diff() <= 1e-12).all()
    assert weights[0, 0] > 5 * weights[0, 11] > 0


def test_cosformer_class_token_attends_to_the_whole_map() -> None:
    ones = torch.ones(1, 1, 1 + 64, 2, dtype=torch.float64)
    weights = cosformer_attention_weights(ones, ones, (8, 8), queries=slice(0, 1))[0, 0, 0]
    assert weights.min() >= math.cos(math.pi / 4) * weights.max()
    torch.testing.assert_close(weights[1:], weights[1:].flip(0))


def test_flatten_attention_by_hand() -> None:
    """f_3(3, 4) = (27, 64) · 5 / √4825, unit keys are unchanged: weights 27/91, 64/91; −1 counts as 0."""
    q, k, v = tokens((3, 4)), tokens((1, -1), (-1, 1)), column(91, 0)
    focused = focus(q, 3).flatten().tolist()
    assert focused == pytest.approx([27 * 5 / math.sqrt(4825), 64 * 5 / math.sqrt(4825)], rel=1e-5)
    # Two heads of one channel also make one token.
    assert focus(q.transpose(1, 3), 3).flatten().tolist() == focused
    assert flatten_attention_weights(q, k).flatten().tolist() == pytest.approx([27 / 91, 64 / 91], rel=1e-5)
    assert flatten_attention(q, k, v).item() == pytest.approx(27, rel=1e-5)


@settings(deadline=None, max_examples=40)
@given(power=st.integers(1, 8), spread=st.floats(1e-3, 1e3), seed=st.integers(0, 2**31))
def test_focus_keeps_the_norm_of_a_token_and_sharpens_its_direction(
    power: int, spread: float, seed: int
) -> None:
    x = spread * randn(2, 3, 5, 4, seed=seed)
    before, after = F.relu(x) + 1e-6, focus(x, power)
    torch.testing.assert_close(after.norm(dim=(1, 3)), before.norm(dim=(1, 3)))
    share_before, share_after = (t.amax(dim=(1, 3)) / t.norm(dim=(1, 3)) for t in (before, after))
    assert (share_after >= share_before - 1e-12).all()


def test_flatten_scale_divides_each_channel_and_gets_gradients() -> None:
    q, k, v = make_qkv(2, 3, 7)
    scale = randn(3, 4).exp()
    mask = make_mask(2, 7)
    assert_matches_reference(
        lambda *args: flatten_attention(*args[:3], scale=args[3], power=2, key_mask=mask),
        lambda *args: flatten_attention_naive(*args[:3], scale=args[3], power=2, key_mask=mask),
        [q, k, v, scale],
    )
    scaled = [x / scale[:, None] for x in (q, k)]
    torch.testing.assert_close(
        flatten_attention(q, k, v, scale=scale), flatten_attention(*scaled, v), rtol=1e-4, atol=1e-4
    )


def test_mlla_attention_by_hand() -> None:
    """Four channels of φ(0) = 1 on a 1×2 map: one pair rotates by the row, one by the column, θ = 1.

    One column further, the second pair scores 2·cos 1 instead of 2; the divisor is 8 for both keys.
    """
    zeros = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    apart = (2 + 2 * math.cos(1)) / 8
    weights = mlla_attention_weights(zeros, zeros, (1, 2)).flatten().tolist()
    assert weights == pytest.approx([0.5, apart, apart, 0.5], rel=1e-5)
    out = mlla_attention(zeros, zeros, column(10, 20), (1, 2)).flatten().tolist()
    assert out == pytest.approx([5 + 20 * apart, 10 * apart + 10], rel=1e-5)


def test_rotation_by_hand() -> None:
    """A class token and a 2×2 map of points (1, 0): rows rotate the first point, columns the second."""
    x = torch.tensor([1.0, 0, 1, 0, 7]).expand(1, 1, 5, 5)
    cos, sin = math.cos(1), math.sin(1)
    expected = [[1, 0, 1, 0, 7]] * 2 + [[1, 0, cos, sin, 7], [cos, sin, 1, 0, 7], [cos, sin, cos, sin, 7]]
    torch.testing.assert_close(rotate(x, (2, 2))[0, 0], torch.tensor(expected))


def test_rotated_products_depend_only_on_the_offset() -> None:
    """The same query and key at every position of a 4×6 map: norms stay, products depend on the offset."""
    q, k = (randn(1, 2, 1, 8, seed=i).expand(-1, -1, 24, -1) for i in range(2))
    rotated_q, rotated_k = rotate(q, (4, 6)), rotate(k, (4, 6))
    torch.testing.assert_close(rotated_q.norm(dim=(1, 3)), q.norm(dim=(1, 3)))
    # Over all channels of a token, heads together.
    products = torch.einsum('bhnd,bhmd->nm', rotated_q, rotated_k)
    by_offset: dict[tuple[int, int], float] = {}
    for i, j in product(range(24), repeat=2):
        offset = (i // 6 - j // 6, i % 6 - j % 6)
        assert products[i, j].item() == pytest.approx(by_offset.setdefault(offset, products[i, j].item()))
    assert len({round(value, 6) for value in by_offset.values()}) == len(by_offset)


def test_landmarks_by_hand() -> None:
    """Five tokens in two segments: the first two and the last three; with one masked, two and two."""
    q, k = column(1, 2, 3, 4, 6), column(10, 20, 30, 40, 60)
    landmarks = compute_landmarks(q, k, 2, None)
    assert (landmarks.q.flatten().tolist(), landmarks.k.flatten().tolist(), landmarks.mask) == (
        [1.5, pytest.approx(13 / 3)],
        [15, pytest.approx(130 / 3)],
        None,
    )
    mask = torch.tensor([[True, False, True, True, True]])
    assert compute_landmarks(q, k, 2, mask).k.flatten().tolist() == [20, 50]
    few = torch.tensor([[False, True, False, False, False]])
    landmarks = compute_landmarks(q, k, 2, few)
    assert (landmarks.k.flatten().tolist(), landmarks.mask.tolist()) == ([0, 20], [[False, True]])


def test_nystrom_attention_by_hand() -> None:
    """Equal tokens: A = 1/2 everywhere is its own pseudo-inverse, and all weights are 1/4."""
    zeros = torch.zeros(1, 1, 4, 1, dtype=torch.float64)
    weights = nystrom_attention_weights(zeros, zeros, num_landmarks=2)
    torch.testing.assert_close(weights, torch.full((1, 1, 4, 4), 0.25, dtype=torch.float64))
    out = nystrom_attention(zeros, zeros, column(1, 2, 3, 10), num_landmarks=2)
    assert out.flatten().tolist() == pytest.approx([4] * 4)


@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('landmarks', [15, 64])
def test_nystrom_attention_with_few_tokens_is_softmax_attention(landmarks: int, masked: bool) -> None:
    q, k, v = make_qkv(2, 3, 15)
    mask = make_mask(2, 15) if masked else None
    exact = softmax_attention_naive(q, k, v, key_mask=mask)
    for op in (nystrom_attention, nystrom_attention_naive):
        torch.testing.assert_close(op(q, k, v, num_landmarks=landmarks, key_mask=mask), exact)


@pytest.mark.parametrize('kept', [1, 3, 5, 7, 8])
def test_nystrom_attention_ignores_empty_segments(kept: int) -> None:
    """A batch with one image that has fewer unmasked tokens than landmarks."""
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[0, kept:] = False
    assert_matches_reference(
        lambda *qkv: nystrom_attention(*qkv, num_landmarks=8, key_mask=mask),
        lambda *qkv: nystrom_attention_naive(*qkv, num_landmarks=8, key_mask=mask),
        make_qkv(2, 2, 20),
    )


def test_nystrom_attention_is_exact_if_the_tokens_of_a_segment_are_equal() -> None:
    """Each row of S(q, k) is then a row of S(q̃, k)."""
    q, k = (5 * randn(1, 2, 3, 4, seed=i).repeat_interleave(4, dim=2) for i in range(2))
    weights = nystrom_attention_weights(q, k, num_landmarks=3, iterations=30)
    torch.testing.assert_close(weights, softmax_attention_weights(q, k))


def test_iteration_converges_to_the_pseudo_inverse() -> None:
    matrix = (6 * torch.eye(5, dtype=torch.float64) + randn(2, 3, 5, 5)).softmax(dim=-1)
    torch.testing.assert_close(pseudo_inverse(matrix, 6), torch.linalg.pinv(matrix), rtol=0, atol=1e-6)
    # Also for lower rank: the last row and column are zero.
    matrix[..., 4, :], matrix[..., :, 4] = 0, 0
    torch.testing.assert_close(pseudo_inverse(matrix, 8), torch.linalg.pinv(matrix), rtol=0, atol=1e-6)


def test_nystrom_attention_is_independent_across_the_batch() -> None:
    q, k, v = (10 * x for x in make_qkv(3, 2, 20))
    together = nystrom_attention(q, k, v, num_landmarks=4)[1:2]
    alone = nystrom_attention(q[1:2], k[1:2], v[1:2], num_landmarks=4)
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)
