"""The vectors of Figure 1 reproduce every weight that the paper prints."""

import torch

from inline.analysis.illustration import ATTENTIONS, make_figure1
from inline.analysis.injectivity import close_pairs, max_distance
from inline.utils.tables import read_csv
from tests.conftest import ROOT

# Read off the drawing, see results/paper/README.md.
DRAWN_KEYS = torch.tensor([[0.60, 1.85], [1.00, 1.00], [1.90, 0.63], [1.80, 0.30]], dtype=torch.float64)
DRAWN_QUERIES = torch.tensor([[0.40, 0.70], [0.68, 1.22], [0.95, 1.68], [1.12, 2.05]], dtype=torch.float64)


def test_all_printed_weights_are_reproduced_to_two_decimals() -> None:
    printed = {
        (line['panel'], line['attention'].lower(), line['query']): [line[f'k{i}'] for i in range(1, 5)]
        for line in read_csv(ROOT / 'results' / 'paper' / 'figure1.csv')
    }
    computed = {
        (panel.name, attention.lower(), f'q{i + 1}'): [f'{weight:.2f}' for weight in row]
        for panel in make_figure1()
        for attention, weights in panel.weights.items()
        for i, row in enumerate(weights.tolist())
    }
    assert len(printed) == 24
    assert computed == printed


def test_vectors_are_where_the_paper_draws_them() -> None:
    first, second = make_figure1()
    assert (first.keys - DRAWN_KEYS).abs().max() < 0.03
    assert (first.queries - DRAWN_QUERIES).abs().max() < 0.05
    assert torch.equal(first.keys, second.keys)


def test_queries_are_collinear_after_the_kernel() -> None:
    for panel in make_figure1():
        directions = torch.nn.functional.normalize(panel.phi(panel.queries), dim=1)
        torch.testing.assert_close(directions, directions[:1].expand_as(directions), rtol=0, atol=1e-12)
    # In panel b the queries themselves are not.
    directions = torch.nn.functional.normalize(panel.queries, dim=1)
    assert (directions[0] - directions[3]).norm() > 0.1


def test_only_linear_attention_confuses_the_queries() -> None:
    for panel in make_figure1():
        collisions = {}
        for name, weights in panel.weights.items():
            ones = torch.ones(4, dtype=torch.float64)
            torch.testing.assert_close(weights.sum(dim=-1), ones, rtol=0, atol=1e-5)
            collisions[name] = int(close_pairs(weights[None], weights[None], 1e-3).triu(diagonal=1).sum())
            assert (max_distance(weights) < 1e-3) == (name == 'linear')
        assert set(collisions) == set(ATTENTIONS)
        assert collisions == {'linear': 6, 'softmax': 0, 'InLine': 0}
