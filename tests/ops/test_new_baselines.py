"""The ops of Agent Attention, PolaFormer, RALA, MALA, MHLA and Circulant Attention.

Fast paths against naive references, masks, half precision, examples by hand.
"""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from inline.ops import (
    agent_attention,
    agent_attention_naive,
    agent_attention_weights,
    circulant_attention,
    circulant_attention_naive,
    circulant_attention_weights,
    mala_attention,
    mala_attention_naive,
    mala_attention_weights,
    mhla_attention,
    mhla_attention_naive,
    mhla_attention_weights,
    polaformer_attention,
    polaformer_attention_naive,
    polaformer_attention_weights,
    rala_attention,
    rala_attention_naive,
    rala_attention_weights,
)
from inline.ops.agent_attention import pool_agents
from inline.ops.mhla_attention import initial_mixing
from inline.ops.rotary import rotate_heads, rotate_heads_naive
from tests.ops.test_baselines import column, randn, tokens
from tests.ops.test_naive_references import MAPS, assert_matches_reference, make_mask, make_qkv

Op = Callable[..., Tensor]


def agent_call(op: Op) -> Op:
    def call(q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], **options: Tensor | None) -> Tensor:
        heads, count = q.shape[1:3]
        key_bias, query_bias = randn(heads, 4, count, seed=5).to(q), randn(heads, count, 4, seed=6).to(q)
        return op(q, k, v, hw, num_agents=4, key_bias=key_bias, query_bias=query_bias, **options)

    return call


def polaformer_call(op: Op) -> Op:
    def call(q: Tensor, k: Tensor, v: Tensor, _: tuple[int, int], **options: Tensor | None) -> Tensor:
        power, scale = 1 + 4 * randn(*q.shape[1::2], seed=5).sigmoid(), randn(*q.shape[1::2], seed=6).exp()
        return op(q, k, v, power.to(q), scale=scale.to(q), **options)

    return call


def mhla_call(op: Op) -> Op:
    def call(q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], **options: Tensor | None) -> Tensor:
        # A query without a positive channel has a divisor of about 1e-6, which is ill-conditioned.
        return op(q + 1.5, k + 1.5, v, hw, randn(9, 9, seed=5).exp().to(q), **options)

    return call


# Fast op and naive reference, both called with q, k, v, hw and key_mask.
OPS: dict[str, tuple[Op, Op]] = {
    'agent': (agent_call(agent_attention), agent_call(agent_attention_naive)),
    'circulant': (circulant_attention, circulant_attention_naive),
    'mala': (mala_attention, mala_attention_naive),
    'mhla': (mhla_call(mhla_attention), mhla_call(mhla_attention_naive)),
    'polaformer': (polaformer_call(polaformer_attention), polaformer_call(polaformer_attention_naive)),
    'rala': (rala_attention, rala_attention_naive),
}


@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize(('batch', 'heads', 'dim'), [(1, 1, 8), (2, 2, 4), (2, 3, 2)])
@pytest.mark.parametrize(('hw', 'prefix'), list(product(MAPS, (0, 2))))
@pytest.mark.parametrize('name', OPS)
def test_fast_op_matches_reference(
    name: str, hw: tuple[int, int], prefix: int, batch: int, heads: int, dim: int, masked: bool
) -> None:
    count = prefix + hw[0] * hw[1]
    mask = make_mask(batch, count) if masked else None
    fast, naive = OPS[name]
    assert_matches_reference(
        lambda *qkv: fast(*qkv, hw, key_mask=mask),
        lambda *qkv: naive(*qkv, hw, key_mask=mask),
        make_qkv(batch, heads, count, dim),
    )


@pytest.mark.parametrize('naive', [False, True])
@pytest.mark.parametrize('name', OPS)
def test_values_of_masked_tokens_have_no_effect(name: str, naive: bool) -> None:
    """NaN in masked tokens does not reach other outputs, and NaN in masked keys and values no gradient."""
    op = OPS[name][int(naive)]
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[0, 6:], mask[1, 2:4] = False, False
    clean = make_qkv(2, 2, 10)
    dirty = [x.masked_fill(~mask[:, None, :, None], float('nan')).requires_grad_() for x in clean]
    kept = mask[:, None, :, None].expand(2, 2, 10, 4)
    out, expected = (op(*qkv, (2, 5), key_mask=mask)[kept] for qkv in (dirty, clean))
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    leaves = [clean[0].requires_grad_(), *dirty[1:]]
    for gradient in torch.autograd.grad(op(*leaves, (2, 5), key_mask=mask)[kept].sum(), leaves):
        assert gradient.isfinite().all()


@pytest.mark.parametrize('name', [name for name in OPS if name != 'agent'])
def test_without_any_key_the_output_is_finite(name: str) -> None:
    mask = torch.zeros(1, 6, dtype=torch.bool)
    assert OPS[name][0](*make_qkv(1, 2, 6), (2, 3), key_mask=mask).isfinite().all()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('name', OPS)
def test_half_precision_is_accurate_over_many_tokens(name: str, dtype: torch.dtype) -> None:
    op, side = OPS[name][0], 96
    q, k, v = (3 * randn(1, 1, side * side, 8, seed=i).float() for i in range(3))
    # A mean far from zero, else the outputs are noise around zero.
    v = v + 3
    exact = op(q, k, v, (side, side))
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    half = op(*leaves, (side, side))
    assert half.dtype == dtype
    assert (half.float() - exact).norm() <= 2e-2 * exact.norm()
    for gradient in torch.autograd.grad(half.float().sum(), leaves):
        assert gradient.isfinite().all()


def test_learned_arguments_get_the_gradients_of_the_reference() -> None:
    q, k, v = make_qkv(2, 2, 15)
    mask, hw = make_mask(2, 15), (3, 5)
    cases: list[tuple[Op, Op, list[Tensor]]] = [
        (
            lambda a, b: agent_attention(q, k, v, hw, num_agents=4, key_bias=a, query_bias=b, key_mask=mask),
            lambda a, b: agent_attention_naive(
                q, k, v, hw, num_agents=4, key_bias=a, query_bias=b, key_mask=mask
            ),
            [randn(2, 4, 15), randn(2, 15, 4, seed=1)],
        ),
        (
            lambda p, s: polaformer_attention(q, k, v, 1 + p.exp(), scale=s.exp(), key_mask=mask),
            lambda p, s: polaformer_attention_naive(q, k, v, 1 + p.exp(), scale=s.exp(), key_mask=mask),
            [randn(2, 4), randn(2, 4, seed=1)],
        ),
        (
            lambda m: mhla_attention(q + 1.5, k + 1.5, v, hw, m.exp(), key_mask=mask),
            lambda m: mhla_attention_naive(q + 1.5, k + 1.5, v, hw, m.exp(), key_mask=mask),
            [randn(4, 4)],
        ),
    ]
    for fast, naive, inputs in cases:
        assert_matches_reference(fast, naive, inputs)


def test_powers_of_zero_have_finite_gradients() -> None:
    """0^p and its derivatives by the base and by the exponent are 0."""
    q, k, v = (x.requires_grad_() for x in make_qkv(1, 1, 6, 2))
    power = torch.full((1, 2), 1.5, dtype=torch.float64, requires_grad=True)
    out = polaformer_attention(q * (q > 0), k * (k > 0.5), v, power)
    for gradient in torch.autograd.grad(out.sum(), [q, k, v, power]):
        assert gradient.isfinite().all()


@pytest.mark.parametrize('dim', [1, 4, 6, 8, 12])
def test_rotation_of_heads_matches_rotation_matrices(dim: int) -> None:
    x = randn(2, 3, 2 + 12, dim)
    rotated = rotate_heads(x, (3, 4))
    torch.testing.assert_close(rotated, rotate_heads_naive(x, (3, 4)), rtol=1e-12, atol=1e-12)
    # Prefix tokens, the first row and column, and channels without a pair are not rotated.
    assert rotated[:, :, :3].equal(x[:, :, :3])
    assert rotated[..., dim // 4 * 4 :].equal(x[..., dim // 4 * 4 :])


def test_agents_by_hand() -> None:
    """A 2×3 map of 1..6 and a grid of 2×2: columns 0–1 and 1–2 overlap. A class token is not pooled."""
    q = column(100, 1, 2, 3, 4, 5, 6)
    assert pool_agents(q, (2, 3), 4).q.flatten().tolist() == [1.5, 2.5, 4.5, 5.5]
    mask = torch.tensor([[True, False, True, True, False, False, True]])
    agents = pool_agents(q, (2, 3), 4, mask)
    assert agents.mask is not None
    assert agents.mask.tolist() == [[True, True, False, True]]
    assert agents.q.flatten().tolist() == [2, 2.5, 0, 6]


def test_agent_attention_by_hand() -> None:
    """One agent 1, the mean of queries 0 and 2, weighs keys 0 and log 3 by 1/4 and 3/4 for all queries."""
    q, k, v = column(0, 2), column(0, math.log(3)), column(4, 8)
    weights = agent_attention_weights(q, k, (1, 2), num_agents=1)
    assert weights.flatten().tolist() == pytest.approx([0.25, 0.75] * 2)
    assert agent_attention(q, k, v, (1, 2), num_agents=1).flatten().tolist() == pytest.approx([7, 7])
    # A bias of log 3 for the first key makes both equal.
    bias = torch.tensor([[[math.log(3), 0]]], dtype=torch.float64)
    out = agent_attention(q, k, v, (1, 2), num_agents=1, key_bias=bias)
    assert out.flatten().tolist() == pytest.approx([6, 6])


def test_polaformer_attention_by_hand() -> None:
    """Query 2 and p = 2: keys 1 and 3 of equal sign have weights 1/10 and 9/10, key −1 of opposite sign 1."""
    q, k, v = column(2), column(1, -1, 3), tokens((10, 1), (20, 2), (30, 3))
    power = torch.full((1, 1), 2.0, dtype=torch.float64)
    weights = polaformer_attention_weights(q, k, power)
    assert weights.shape == (1, 2, 1, 3)
    assert weights[0, :, 0].tolist() == [
        pytest.approx([0.1, 0, 0.9], rel=1e-5),
        pytest.approx([0, 1, 0], rel=1e-5),
    ]
    out = polaformer_attention(q, k, v, power)
    assert out.flatten().tolist() == pytest.approx([28, 2], rel=1e-5)
    # The scale divides queries and keys alike and cancels here.
    scaled = polaformer_attention(q, k, v, power, scale=torch.full((1, 1), 0.5, dtype=torch.float64))
    torch.testing.assert_close(scaled, out, rtol=1e-5, atol=0)


def test_rala_attention_by_hand() -> None:
    """φ(k) = 1, 2 and φ(q)‾ = 1: importances 1 : e, so weights 1 : 2e. One channel is not rotated."""
    q, k, v = column(0, 0), column(0, 1), column(1 + 2 * math.e, 0)
    weights = rala_attention_weights(q, k, (1, 2))[0, 0, 0].tolist()
    assert weights == pytest.approx([1 / (1 + 2 * math.e), 2 * math.e / (1 + 2 * math.e)], rel=1e-5)
    assert rala_attention(q, k, v, (1, 2)).flatten().tolist() == pytest.approx([1, 1], rel=1e-5)


def test_mala_attention_by_hand() -> None:
    """φ(q) = 1, φ(k) = 1, 3: z = 2 and β = 3/2, so w = (3/2 − 2)/2, (9/2 − 2)/2 = −1/4, 5/4."""
    q, k, v = column(0, 0), column(0, 2), column(4, 8)
    assert mala_attention_weights(q, k, (1, 2))[0, 0, 0].tolist() == pytest.approx([-0.25, 1.25], rel=1e-5)
    assert mala_attention(q, k, v, (1, 2)).flatten().tolist() == pytest.approx([9, 9], rel=1e-5)


def test_mala_weights_change_with_the_norm_of_the_query() -> None:
    """φ is linear for positive numbers: φ(q) = 2 and 4 are parallel, yet their weights differ."""
    weights = mala_attention_weights(column(1, 3), column(0, 2), (1, 2))[0, 0]
    assert (weights[0] - weights[1]).abs().max() > 0.1
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, dtype=torch.float64), rtol=1e-5, atol=0)


def test_mhla_attention_by_hand() -> None:
    """A 1×2 map in a grid of 2×2: every token is a block, and the lower two blocks are empty.

    The divisor of token 0 is M_00·q_0·k_0 + M_01·q_1·k_1 = 1·2·1 + 3·4·5 = 62. That of token 1 with
    M_10 = 1/2 and M_11 = 1 is 1 + 20 = 21.
    """
    mixing = torch.zeros(4, 4, dtype=torch.float64)
    mixing[0, 0], mixing[0, 1], mixing[1, 0], mixing[1, 1] = 1, 3, 0.5, 1
    q, k, v = column(2, 4), column(1, 5), column(62, 21)
    expected = [1 * 2 * 1 / 62, 3 * 2 * 5 / 62, 0.5 * 4 * 1 / 21, 1 * 4 * 5 / 21]
    weights = mhla_attention_weights(q, k, (1, 2), mixing).flatten().tolist()
    assert weights == pytest.approx(expected, rel=1e-5)
    out = mhla_attention(q, k, v, (1, 2), mixing).flatten().tolist()
    assert out == pytest.approx([2 + 30 * 21 / 62, 2 * 62 / 21 + 20], rel=1e-5)


def test_mhla_prefix_token_has_plain_linear_attention() -> None:
    q, k = randn(1, 2, 1 + 35, 4).abs(), randn(1, 2, 1 + 35, 4, seed=1).abs()
    weights = mhla_attention_weights(q, k, (5, 7), initial_mixing(2), queries=slice(0, 1))
    scores = q[:, :, :1] @ k.transpose(-2, -1)
    torch.testing.assert_close(weights, scores / scores.sum(dim=-1, keepdim=True), rtol=1e-5, atol=1e-6)


def test_one_block_of_mhla_is_plain_linear_attention_up_to_the_divisor_query() -> None:
    """With a single block the query of the divisor is that of the token, on any map."""
    q, k = randn(1, 2, 35, 4).abs(), randn(1, 2, 35, 4, seed=1).abs()
    weights = mhla_attention_weights(q, k, (5, 7), initial_mixing(1))
    scores = q @ k.transpose(-2, -1)
    torch.testing.assert_close(weights, scores / scores.sum(dim=-1, keepdim=True), rtol=1e-5, atol=1e-6)


def test_circulant_attention_by_hand() -> None:
    """On a torus of two tokens, shifts 0 and 1 score 0 and log 3, so A = 1/4, 3/4."""
    q, k, v = column(1, 0), column(0, math.sqrt(2) * math.log(3)), column(4, 8)
    weights = circulant_attention_weights(q, k, (1, 2)).flatten().tolist()
    assert weights == pytest.approx([0.25, 0.75, 0.75, 0.25])
    assert circulant_attention(q, k, v, (1, 2)).flatten().tolist() == pytest.approx([7, 5])


def test_circulant_attention_is_equivariant_to_cyclic_shifts() -> None:
    qkv = [randn(1, 2, 15, 4, seed=i) for i in range(3)]

    def shift(x: Tensor) -> Tensor:
        return x.unflatten(2, (3, 5)).roll((1, 2), dims=(2, 3)).flatten(2, 3)

    shifted = circulant_attention(*(shift(x) for x in qkv), (3, 5))
    torch.testing.assert_close(shifted, shift(circulant_attention(*qkv, (3, 5))))


def test_circulant_map_does_not_attend_to_prefix_tokens() -> None:
    q, k = randn(1, 2, 2 + 6, 4), randn(1, 2, 2 + 6, 4, seed=1)
    weights = circulant_attention_weights(q, k, (2, 3))
    assert weights.shape == (1, 8, 8, 8)
    assert not weights[:, :, 2:, :2].any()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 8, 8, dtype=torch.float64))
    # Channels of a head share the weights of a prefix token, and have their own on the map.
    assert weights[:, 0, :2].equal(weights[:, 3, :2])
    assert not weights[:, 3, :2].equal(weights[:, 4, :2])
    assert not weights[:, 0, 2:].equal(weights[:, 1, 2:])
