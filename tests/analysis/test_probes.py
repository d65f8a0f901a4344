"""The two probe tasks: their data, exact properties of the mixers, and short runs."""

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
    NeighborProbe,
    right_neighbors,
    run_probe,
)
from inline.models.mixers import MIXERS
from inline.ops import kernels
from inline.utils.errors import UserError

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
# Normalises queries before the kernel.
NORMALIZES_QUERIES = ('MHLA',)
SENSITIVE_TO_LENGTH = tuple(
    name for name in MIXER_ROWS if name not in (*BLIND_TO_LENGTH, *NORMALIZES_QUERIES)
)


def make_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def length_probe(name: str) -> LengthProbe:
    torch.manual_seed(0)
    probe = LengthProbe(MIXER_ROWS[name]).double()
    # Perturb the parameters as training would: biases and FLatten's scales start at trivial values.
    for parameter in probe.mixer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return probe


def attended(probe: LengthProbe, points: Tensor) -> Tensor:
    with torch.no_grad():
        return probe.mixer.attend(probe.make_inputs(points))


def exact_division(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the small constants that keep divisors away from zero."""
    monkeypatch.setattr(kernels, 'EPSILON', 0.0)
    # Attribute access would return the function of the same name instead of the module.
    monkeypatch.setattr(import_module('inline.ops.flatten_attention'), 'EPSILON', 0.0)


def positive_points(probe: LengthProbe) -> Tensor:
    """Return points whose projected queries have a positive channel in every head; else relu gives 0 / 0."""
    points, _ = probe.sample_train(4, make_generator())
    points = points.double()
    q, _, _ = probe.make_inputs(points).heads()
    alive = (q > 0).any(dim=-1).all(dim=1)
    replacement = points[alive][0]
    return torch.where(alive[..., None], points, replacement)


def test_label_is_the_class_to_the_right_and_the_last_column_is_ignored() -> None:
    classes = torch.tensor([[0, 1, 2, 3, 4, 5]])
    assert right_neighbors(classes, (2, 3)).tolist() == [[1, 2, IGNORED, 4, 5, IGNORED]]
    assert right_neighbors(classes, (3, 2)).tolist() == [[1, IGNORED, 3, IGNORED, 5, IGNORED]]


def test_maps_contain_every_class_equally_often() -> None:
    for make in (NeighborProbe.sample_train, NeighborProbe.sample_test):
        classes, labels = make(5, make_generator())
        counts = torch.stack([row.bincount(minlength=SETTINGS.classes) for row in classes])
        assert (counts == SETTINGS.tokens // SETTINGS.classes).all()
        assert torch.equal(labels, right_neighbors(classes, SETTINGS.hw))
        assert not torch.equal(classes[0], classes[1])


def test_chance_of_the_neighbor_task() -> None:
    assert NeighborProbe.chance == 8 / 63
    assert NeighborProbe.best == 1
    classes, labels = NeighborProbe.sample_train(4000, make_generator())
    scored = labels != IGNORED
    counts = torch.zeros(SETTINGS.classes, SETTINGS.classes)
    counts.index_put_((classes[scored], labels[scored]), torch.ones(int(scored.sum())), accumulate=True)
    shares = counts / counts.sum(dim=1, keepdim=True)
    same = torch.eye(SETTINGS.classes, dtype=torch.bool)
    torch.testing.assert_close(shares[same], torch.full((8,), 7 / 63), atol=0.01, rtol=0)
    torch.testing.assert_close(shares[~same], torch.full((56,), 8 / 63), atol=0.01, rtol=0)


def test_labels_are_the_lengths_of_the_points() -> None:
    for make in (LengthProbe.sample_train, LengthProbe.sample_test):
        points, labels = make(8, make_generator())
        assert points.shape == (8, SETTINGS.tokens, 2)
        torch.testing.assert_close(points.norm(dim=-1), torch.tensor(SETTINGS.lengths)[labels])
        assert set(labels.unique().tolist()) == set(range(len(SETTINGS.lengths)))


def test_test_set_contains_every_direction_at_every_length() -> None:
    points, labels = LengthProbe.sample_test(12, make_generator())
    directions = torch.nn.functional.normalize(points, dim=-1).unflatten(0, (4, 3))
    torch.testing.assert_close(directions, directions[:1].expand_as(directions))
    assert (labels.unflatten(0, (4, 3)).sort(dim=0).values == torch.arange(4)[:, None, None]).all()
    # The same prediction for all lengths is therefore correct in one of four cases.
    assert LengthProbe.chance == 1 / 4
    assert LengthProbe.best == 1


def test_keys_and_values_do_not_depend_on_the_points() -> None:
    probe = length_probe('InLine')
    points, _ = (tensor.double() for tensor in probe.sample_train(2, make_generator()))
    one, other = probe.make_inputs(points), probe.make_inputs(3 * points + 1)
    for name in ('k', 'v', 'x'):
        assert torch.equal(getattr(one, name), getattr(other, name))
    torch.testing.assert_close(probe.make_inputs(3 * points).q, 3 * one.q)


@pytest.mark.parametrize('name', BLIND_TO_LENGTH)
def test_homogeneous_kernels_give_all_lengths_the_same_output(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = length_probe(name)
    points = positive_points(probe)
    exact_division(monkeypatch)
    out = attended(probe, points)
    assert out.isfinite().all()
    # Scaling by a power of two is exact.
    assert torch.equal(attended(probe, 8 * points), out)
    # Outputs are large where the divisor of the identity kernel is near zero.
    tolerance = 1e-12 * max(1, float(out.abs().max()))
    torch.testing.assert_close(attended(probe, 0.3 * points), out, rtol=0, atol=tolerance)


def test_leak_of_relu_attention_is_bounded_by_its_epsilon() -> None:
    probe = length_probe('Linear-relu')
    points = positive_points(probe)
    phi_q, phi_k, _ = (tensor.relu() for tensor in probe.make_inputs(points).heads())
    smallest = kernels.mean_score(phi_q, phi_k, None).min()
    out = attended(probe, points)
    leak = (attended(probe, 8 * points) - out).abs().max() / out.abs().max()
    assert 0 < leak < kernels.EPSILON / smallest


@pytest.mark.parametrize('name', NORMALIZES_QUERIES)
def test_a_norm_of_the_queries_removes_their_length(name: str) -> None:
    probe = length_probe(name)
    points, _ = probe.sample_train(2, make_generator())
    out = attended(probe, points.double())
    torch.testing.assert_close(attended(probe, 8 * points.double()), out, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize('name', SENSITIVE_TO_LENGTH)
def test_other_mixers_give_lengths_different_outputs(name: str) -> None:
    probe = length_probe(name)
    points, _ = probe.sample_train(2, make_generator())
    out = attended(probe, points.double())
    assert (attended(probe, 2 * points.double()) - out).norm() > 1e-2 * out.norm()


def test_inline_output_is_proportional_to_the_length() -> None:
    probe = length_probe('InLine')
    points, _ = probe.sample_train(1, make_generator())
    zero, one, three = (attended(probe, factor * points.double()) for factor in (0, 1, 3))
    torch.testing.assert_close(three - zero, 3 * (one - zero))


def test_softmax_is_permutation_equivariant_and_cannot_find_neighbors() -> None:
    torch.manual_seed(0)
    probe = NeighborProbe(MIXER_ROWS['Softmax']).double()
    classes, _ = probe.sample_train(2, make_generator())
    order = torch.randperm(SETTINGS.tokens, generator=make_generator(1))
    torch.testing.assert_close(probe(classes[:, order]), probe(classes)[:, order])


@pytest.mark.slow
@pytest.mark.parametrize(
    ('task', 'name'), [('length', 'InLine'), ('length', 'Softmax'), ('neighbour', 'InLine')]
)
def test_short_training_learns_visible_properties(task: str, name: str) -> None:
    score = run_probe(task, MIXER_ROWS[name], steps=250)
    assert score.accuracy > 0.9
    assert (score.chance, score.best) == (PROBES[task].chance, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(('task', 'name'), [('length', 'Linear-relu'), ('neighbour', 'Softmax')])
def test_short_training_stays_at_chance_for_invisible_properties(task: str, name: str) -> None:
    score = run_probe(task, MIXER_ROWS[name], steps=250)
    assert score.accuracy == pytest.approx(score.chance, abs=0.02)


def test_score_depends_only_on_the_seed() -> None:
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
    ('task', 'config', 'steps', 'message'),
    [
        ('width', {'type': 'InLine'}, 1, "unknown task 'width': choose one of length, neighbour"),
        ('length', {'type': 'Linea'}, 1, "unknown mixer type 'Linea'"),
        ('length', {'type': 'InLine'}, 0, 'steps 0: must be at least 1'),
    ],
)
def test_invalid_arguments_are_rejected(task: str, config: dict[str, str], steps: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_probe(task, config, steps=steps)
