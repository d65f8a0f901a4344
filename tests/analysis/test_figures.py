"""Contents of the figures, read from matplotlib before they are saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from inline.analysis import figures
from inline.analysis.layers import Layer
from inline.analysis.maps import LayerMaps
from inline.models.mixers import build_mixer


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Return the saved figures in order."""
    saved: list[Figure] = []
    save = Figure.savefig

    def record(figure: Figure, path: Path, **options: Any) -> None:
        saved.append(figure)
        save(figure, path, **options)

    monkeypatch.setattr(Figure, 'savefig', record)
    return saved


def test_every_head_has_its_own_histogram(drawn: list[Figure], tmp_path: Path) -> None:
    """Four images. Bins are [0, 1), then five per decade from 1 to 100."""
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
    assert (a.get_xlabel(), bar.get_ylabel()) == ('colliding query pairs per image', 'images (%)')
    assert a.get_ylabel() == 'layer (stage.block), a row for each head'


@pytest.mark.parametrize('same', [True, False])
def test_residuals_are_drawn_once_or_for_each_query(same: bool, drawn: list[Figure], tmp_path: Path) -> None:
    kernels = torch.arange(9.0).view(1, 3, 3).repeat(2, 1, 1)
    if not same:
        kernels[1] += 1
    layer = Layer('1.1', 'stage 1 block 1', build_mixer({'type': 'InLine'}, 8, 2))
    one = LayerMaps(layer, 8, torch.full((2, 4, 4), 1 / 16), 8, kernels)
    image = np.zeros((32, 32, 3), np.uint8)
    figures.draw_maps(image, [(4, 20), (9, 9)], [one], tmp_path / 'maps.png')
    titles = [axes.get_title() for axes in drawn[0].axes]
    assert [title for title in titles if 'query' in title] == [
        'query at (y, x) = (4, 20) pixels',
        'query at (y, x) = (9, 9) pixels',
    ]
    shown = [axes.images[0].get_array() for axes in drawn[0].axes if '3×3 kernel' in axes.get_title()]
    np.testing.assert_allclose(shown, kernels[:1] if same else kernels)
    texts = [text.get_text() for axes in drawn[0].axes for text in axes.texts]
    names = ['the same for all queries'] if same else [title for title in titles if 'query' in title]
    assert texts == [f'local residual\n{name}' for name in names]
