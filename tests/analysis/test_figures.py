"""What the pictures show, read from them before they are written."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from inline.analysis import figures


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures in the order in which they were written."""
    kept: list[Figure] = []
    save = figures._save

    def keep(figure: Figure, path: Path) -> None:
        kept.append(figure)
        save(figure, path)

    monkeypatch.setattr(figures, '_save', keep)
    return kept


def test_every_head_has_a_histogram_of_its_own(drawn: list[Figure], tmp_path: Path) -> None:
    """Four images. Bins are [0, 1), five to a decade from 1 to 10 and from 10 to 100."""
    pairs = torch.full((4, 2), 120)
    first = torch.tensor([[0, 3], [0, 3], [0, 3], [1, 99]])
    second = torch.tensor([[10], [10], [0], [0]])
    measured = {
        'a': {'1.1': (first, pairs), '1.2': (second, pairs[:, :1])},
        'b': {'1.1': (0 * first, pairs), '1.2': (second, pairs[:, :1])},
    }
    figures.draw_heads(measured, tmp_path / 'heads.png')
    assert (tmp_path / 'heads.png').stat().st_size > 10_000
    a, b, bar = drawn[0].axes
    expected = np.zeros((3, 11))
    expected[0, [0, 1]] = 75, 25
    expected[1, [3, 10]] = 75, 25
    expected[2, [0, 6]] = 50, 50
    np.testing.assert_allclose(a.collections[0].get_array().filled(0), expected)
    expected[:2] = 0
    expected[:2, 0] = 100
    np.testing.assert_allclose(b.collections[0].get_array().filled(0), expected)
    assert [(tick.get_text(), tick.get_position()[1]) for tick in a.get_yticklabels()] == [
        ('1.1', 1.0),
        ('1.2', 2.5),
    ]
    # The first layer and head are at the top.
    assert a.get_ylim() == (3, 0)
    assert (a.get_title(), b.get_title()) == ('a', 'b')
    assert (a.get_xlabel(), bar.get_ylabel()) == ('colliding query pairs of an image', 'images (%)')
    assert a.get_ylabel() == 'layer (stage.block), a row for each head'
