"""The two tasks by hand, what theory says about them exactly, and that a short training agrees."""

from importlib import import_module

import pytest
import torch
from torch import Tensor

from inline.analysis.probes import (
    IGNORED,
    MIXER_ROWS,
    PROBES,
    SETTINGS,
    LengthProbe,
    NeighbourProbe,
    right_neighbours,
    run_probe,
)
from inline.errors import UserError
from inline.models.mixers import MIXERS
from inline.ops import features

BLIND_TO_LENGTH = (
    'InLine-not-injective',
    'InLine-neither',
    'Linear-identity',
    'Linear-relu',
    'Linear-leaky_relu',
    'CosFormer',
    'FLatten',
    'FLatten-no-conv',
)
SEE_LENGTH = tuple(name for name in MIXER_ROWS if name not in BLIND_TO_LENGTH)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def length_probe(name: str) -> LengthProbe:
    torch.manual_seed(0)
    probe = LengthProbe(MIXER_ROWS[name]).double()
    # As after some training: biases and FLatten's scales begin at zero, or as good as equal.
    for parameter in probe.mixer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return probe


def attended(probe: LengthProbe, points: Tensor) -> Tensor:
    with torch.no_grad():
        return probe.mixer.attend(probe.part(points))


def exact_division(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the small numbers that keep divisors off zero."""
    monkeypatch.setattr(features, 'EPSILON', 0.0)
    # By its path the module cannot be reached: its function has the same name.
    monkeypatch.setattr(import_module('inline.ops.flatten_attention'), 'FLOOR', 0.0)


def positive_points(probe: LengthProbe) -> Tensor:
    """Points whose projected queries have something positive in every head: else relu leaves 0 / 0."""
    points, _ = probe.sample(4, source())
    points = points.double()
    q, _, _ = probe.part(points).heads()
    alive = (q > 0).any(dim=-1).all(dim=1)
    stand_in = points[alive][0]
    return torch.where(alive[..., None], points, stand_in)


def test_the_neighbour_is_the_one_to_the_right_and_the_last_column_is_not_asked() -> None:
    contents = torch.tensor([[0, 1, 2, 3, 4, 5]])
    assert right_neighbours(contents, (2, 3)).tolist() == [[1, 2, IGNORED, 4, 5, IGNORED]]
    assert right_neighbours(contents, (3, 2)).tolist() == [[1, IGNORED, 3, IGNORED, 5, IGNORED]]


def test_maps_hold_every_content_equally_often() -> None:
    for make in (NeighbourProbe.sample, NeighbourProbe.exam):
        contents, labels = make(5, source())
        counts = torch.stack([row.bincount(minlength=SETTINGS.contents) for row in contents])
        assert (counts == SETTINGS.tokens // SETTINGS.contents).all()
        assert torch.equal(labels, right_neighbours(contents, SETTINGS.hw))
        assert not torch.equal(contents[0], contents[1])


def test_the_chance_of_the_neighbour_is_that_of_any_other_content() -> None:
    assert NeighbourProbe.chance == 8 / 63
    assert NeighbourProbe.best == 1
    contents, labels = NeighbourProbe.sample(4000, source())
    asked = labels != IGNORED
    counts = torch.zeros(SETTINGS.contents, SETTINGS.contents)
    counts.index_put_((contents[asked], labels[asked]), torch.ones(int(asked.sum())), accumulate=True)
    shares = counts / counts.sum(dim=1, keepdim=True)
    same = torch.eye(SETTINGS.contents, dtype=torch.bool)
    torch.testing.assert_close(shares[same], torch.full((8,), 7 / 63), atol=0.01, rtol=0)
    torch.testing.assert_close(shares[~same], torch.full((56,), 8 / 63), atol=0.01, rtol=0)


def test_labels_are_the_lengths_of_the_points() -> None:
    for make in (LengthProbe.sample, LengthProbe.exam):
        points, labels = make(8, source())
        assert points.shape == (8, SETTINGS.tokens, 2)
        torch.testing.assert_close(points.norm(dim=-1), torch.tensor(SETTINGS.lengths)[labels])
        assert set(labels.unique().tolist()) == set(range(len(SETTINGS.lengths)))


def test_the_exam_asks_every_direction_at_every_length() -> None:
    points, labels = LengthProbe.exam(12, source())
    directions = torch.nn.functional.normalize(points, dim=-1).unflatten(0, (4, 3))
    torch.testing.assert_close(directions, directions[:1].expand_as(directions))
    assert (labels.unflatten(0, (4, 3)).sort(dim=0).values == torch.arange(4)[:, None, None]).all()
    # So one answer for all lengths is right once in four times.
    assert LengthProbe.chance == 1 / 4
    assert LengthProbe.best == 1


def test_keys_and_values_do_not_depend_on_the_points() -> None:
    probe = length_probe('InLine')
    points, _ = (tensor.double() for tensor in probe.sample(2, source()))
    one, other = probe.part(points), probe.part(3 * points + 1)
    for name in ('k', 'v', 'x'):
        assert torch.equal(getattr(one, name), getattr(other, name))
    torch.testing.assert_close(probe.part(3 * points).q, 3 * one.q)


@pytest.mark.parametrize('name', BLIND_TO_LENGTH)
def test_a_homogeneous_kernel_gives_all_lengths_one_output(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = length_probe(name)
    points = positive_points(probe)
    exact_division(monkeypatch)
    out = attended(probe, points)
    assert out.isfinite().all()
    # A power of two changes no digit.
    assert torch.equal(attended(probe, 8 * points), out)
    # Outputs are large where the identity's divisor is near zero.
    tolerance = 1e-12 * max(1, float(out.abs().max()))
    torch.testing.assert_close(attended(probe, 0.3 * points), out, rtol=0, atol=tolerance)


def test_relu_attention_leaks_no_more_than_its_divisor_is_off() -> None:
    probe = length_probe('Linear-relu')
    points = positive_points(probe)
    phi_q, phi_k, _ = (tensor.relu() for tensor in probe.part(points).heads())
    smallest = features.mean_score(phi_q, phi_k, None).min()
    out = attended(probe, points)
    leak = (attended(probe, 8 * points) - out).abs().max() / out.abs().max()
    assert 0 < leak < features.EPSILON / smallest


@pytest.mark.parametrize('name', SEE_LENGTH)
def test_the_others_give_lengths_different_outputs(name: str) -> None:
    probe = length_probe(name)
    points, _ = probe.sample(2, source())
    out = attended(probe, points.double())
    assert (attended(probe, 2 * points.double()) - out).norm() > 1e-2 * out.norm()


def test_inline_moves_in_proportion_to_the_length() -> None:
    probe = length_probe('InLine')
    points, _ = probe.sample(1, source())
    zero, one, three = (attended(probe, factor * points.double()) for factor in (0, 1, 3))
    torch.testing.assert_close(three - zero, 3 * (one - zero))


def test_softmax_follows_a_permutation_of_the_contents_so_it_cannot_know_neighbours() -> None:
    torch.manual_seed(0)
    probe = NeighbourProbe(MIXER_ROWS['Softmax']).double()
    contents, _ = probe.sample(2, source())
    order = torch.randperm(SETTINGS.tokens, generator=source(1))
    torch.testing.assert_close(probe(contents[:, order]), probe(contents)[:, order])


@pytest.mark.parametrize(
    ('task', 'name'), [('length', 'InLine'), ('length', 'Softmax'), ('neighbour', 'InLine')]
)
def test_a_short_training_finds_what_can_be_seen(task: str, name: str) -> None:
    score = run_probe(task, MIXER_ROWS[name], steps=250)
    assert score.accuracy > 0.9
    assert (score.chance, score.best) == (PROBES[task].chance, 1.0)


@pytest.mark.parametrize(('task', 'name'), [('length', 'Linear-relu'), ('neighbour', 'Softmax')])
def test_a_short_training_stays_at_chance_where_nothing_can_be_seen(task: str, name: str) -> None:
    score = run_probe(task, MIXER_ROWS[name], steps=250)
    assert score.accuracy == pytest.approx(score.chance, abs=0.02)


def test_a_seed_decides_the_score_and_nothing_outside_it_does() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    scores = [run_probe('length', MIXER_ROWS['InLine'], seed=seed, steps=20) for seed in (0, 0, 1)]
    assert scores[0] == scores[1] != scores[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_every_registered_mixer_has_a_row() -> None:
    assert set(MIXERS) <= {config['type'] for config in MIXER_ROWS.values()}
    kernels = {config.get('kernel') for config in MIXER_ROWS.values() if config['type'] == 'Linear'}
    assert {'identity', 'relu', 'leaky_relu', 'affine_relu', 'exp'} <= kernels


@pytest.mark.parametrize('task', PROBES)
def test_every_row_can_be_scored(task: str) -> None:
    for name, config in MIXER_ROWS.items():
        assert 0 <= run_probe(task, config, steps=1).accuracy <= 1, name


@pytest.mark.parametrize(
    ('task', 'config', 'steps', 'told'),
    [
        ('width', {'type': 'InLine'}, 1, "unknown task 'width': choose one of length, neighbour"),
        ('length', {'type': 'Linea'}, 1, "unknown mixer type 'Linea'"),
        ('length', {'type': 'InLine'}, 0, 'steps 0: must be at least 1'),
    ],
)
def test_mistakes_are_told(task: str, config: dict[str, str], steps: int, told: str) -> None:
    with pytest.raises(UserError, match=told):
        run_probe(task, config, steps=steps)
