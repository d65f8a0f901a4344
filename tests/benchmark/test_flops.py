"""Multiply-adds of small models by hand; those of the released models are checked with the backbones."""

import pytest
import torch
from torch import nn

from inline.benchmark.flops import count_flops
from inline.models.mixers import InLineMixer, SoftmaxMixer, build_mixer


class Head(nn.Module):
    """Never called itself: the model calls its layers, as heads of mmdet do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, kernel_size=2, stride=2)
        self.norm = nn.LayerNorm(4)
        self.dropout = nn.Dropout()
        self.head = Head()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(image).flatten(2).transpose(1, 2))
        return self.head.fc(self.dropout(x).mean(dim=1))


def test_costs_of_children_and_total() -> None:
    model = Model()
    costs = count_flops(model, lambda: model(torch.zeros(1, 3, 6, 8)))
    assert [(cost.name, cost.parameters, cost.multiply_adds) for cost in costs] == [
        ('conv', 52, 12 * 4 * 12),
        ('norm', 8, 5 * 12 * 4),
        ('head', 15, 12),
        ('total', 75, 12 * 4 * 12 + 5 * 12 * 4 + 12),
    ]
    assert model.training


@pytest.mark.parametrize('side', [2, 8])
def test_inline_is_counted_through_queries_and_keys(side: int) -> None:
    """64 tokens of 16 channels use the fast path, which has other products; the count must not."""
    n, dim, heads = side**2, 16, 2
    mixer = InLineMixer(dim, heads, residual=False).eval()
    x = torch.randn(1, n, dim)
    total = count_flops(mixer, lambda: mixer(x, (side, side)))[-1].multiply_adds
    # Projections, covariance and output.
    assert total == n * dim * 4 * dim + 2 * n * dim * (dim // heads)
    assert mixer.min_tokens == InLineMixer.tokens_per_channel * dim


def test_softmax_is_counted_as_quadratic() -> None:
    mixer = SoftmaxMixer(16, 2).eval()
    x = torch.randn(1, 64, 16)
    total = count_flops(mixer, lambda: mixer(x, (8, 8)))[-1].multiply_adds
    assert total == 64 * 16 * 4 * 16 + 2 * 64 * 64 * 16


# Multiply-adds of n tokens with C = 16 channels in heads of d = 8: projections, attention, convolution.
N, C, D = 64, 16, 8
COSTS = {
    # Agents with keys and values, queries with agents and their values.
    'Agent': 4 * N * C * C + 4 * 49 * N * C + 9 * N * C,
    # For equal and opposite signs: keys of 2d features with d/2 values, queries with both, divisors.
    'PolaFormer': 5 * N * C * C + 4 * N * C * D + 4 * N * C + 25 * N * C,
    # Keys with values, queries with both, divisors, importance of the keys.
    'RALA': 5 * N * C * C + 2 * N * C * D + 2 * N * C + 25 * N * C,
    'MALA': 5 * N * C * C + 2 * N * C * D + N * C + 25 * N * C,
    # Sums of blocks with a channel of ones, queries with the sums, divisors, 16 × 16 mixtures of both.
    'MHLA': 4 * N * C * C
    + N * C * (2 * D + 1)
    + N * C
    + 16 * 16 * C * (D + 1)
    + 16 * N * C // D
    + 25 * N * C,
    # Six Fourier transforms of every channel: queries, keys, scores, weights, values, output.
    'Circulant': 5 * N * C * C + 6 * C * int(1.25 * N * 6),
}


@pytest.mark.parametrize('kind', COSTS)
def test_cost_of_baselines_by_hand(kind: str) -> None:
    mixer = build_mixer({'type': kind}, C, C // D).eval()
    x = torch.randn(1, N, C)
    assert count_flops(mixer, lambda: mixer(x, (8, 8)))[-1].multiply_adds == COSTS[kind]


@pytest.mark.parametrize('kind', COSTS)
def test_cost_of_baselines_grows_as_the_number_of_tokens(kind: str) -> None:
    """Times 4 from 32×32 to 64×64 tokens; the transforms of circulant attention grow by 4 · 12 / 10."""
    totals = []
    with torch.device('meta'):
        mixer = build_mixer({'type': kind}, C, C // D).eval()
        for side in (32, 64):
            x = torch.empty(1, side**2, C)
            totals.append(count_flops(mixer, lambda: mixer(x, (side, side)))[-1].multiply_adds)  # noqa: B023
    share = 6 * C * 1.25 * 1024 * 10 / totals[0] if kind == 'Circulant' else 0
    assert totals[1] / totals[0] == pytest.approx(4 * (1 + 0.2 * share), rel=0.02)
