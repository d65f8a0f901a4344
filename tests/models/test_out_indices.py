"""Backbones build and run only the stages or blocks that ``out_indices`` needs."""

from itertools import combinations

import pytest
import torch
from torch import nn

from inline.checkpoints.state_dict import load_partial_state_dict
from tests.models.families import FAMILIES, build

EVERY = pytest.mark.parametrize('family', FAMILIES)
# All sets of stages, or of blocks of a DeiT of depth 4.
OUT_INDICES = [indices for count in (1, 2, 3, 4) for indices in combinations(range(4), count)]


def make(family: str, seed: int = 0, **options: object) -> nn.Module:
    torch.manual_seed(seed)
    return build(family, **options).double().eval()


@pytest.mark.slow
@EVERY
def test_every_parameter_gets_a_gradient(family: str) -> None:
    """DistributedDataParallel raises for parameters without one."""
    image = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    for out_indices in OUT_INDICES:
        model = make(family, out_indices=out_indices)
        sum(out.square().mean() for out in model(image)).backward()
        without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
        assert not without, out_indices


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize('as_part', [False, True])
def test_a_full_checkpoint_loads_and_gives_the_same_features(family: str, as_part: bool) -> None:
    """Also as a part of a detector or classifier."""
    full, image = make(family, out_indices=(0, 1, 2, 3)), torch.randn(1, 3, 64, 96, dtype=torch.float64)
    features = full(image)
    for out_indices in OUT_INDICES:
        model = make(family, seed=1, out_indices=out_indices)
        if as_part:
            wrapper = nn.ModuleDict({'backbone': model})
            wrapper.load_state_dict({f'backbone.{k}': v for k, v in full.state_dict().items()})
        else:
            model.load_state_dict(full.state_dict())
        torch.testing.assert_close(model(image), tuple(features[i] for i in out_indices), rtol=0, atol=0)


@EVERY
def test_unused_prefixes_are_exactly_the_weights_that_are_not_built(family: str) -> None:
    full = set(make(family, out_indices=(0, 1, 2, 3)).state_dict())
    for out_indices in OUT_INDICES:
        model = make(family, out_indices=out_indices)
        prefixes = model.unused_state_dict_prefixes()
        assert {key for key in full if key.startswith(prefixes)} == full - set(model.state_dict())


@EVERY
def test_load_report_lists_the_weights_that_are_not_built(family: str) -> None:
    full = make(family, out_indices=(0, 1, 2, 3)).state_dict()
    wrapper = nn.ModuleDict({'backbone': make(family, seed=1, out_indices=(0, 1))})
    weights = {f'backbone.{key}': value for key, value in full.items()}
    report = load_partial_state_dict(wrapper, weights, 'full.pth')
    assert report.exact
    assert set(report.unused) == set(weights) - set(wrapper.state_dict()) != set()
    assert 'of stages that are not built' in report.describe()


@EVERY
def test_other_unexpected_weights_are_still_refused(family: str) -> None:
    model = make(family, out_indices=(0,))
    with pytest.raises(RuntimeError, match='Unexpected key'):
        model.load_state_dict(
            {**model.state_dict(), 'stages.0.extra': torch.zeros(1), 'extra': torch.zeros(1)}
        )


@EVERY
def test_depth_dependent_settings_are_those_of_the_full_model(family: str) -> None:
    """Stochastic depth, layer-wise learning-rate decay and frozen_stages."""
    full, short = (
        make(family, out_indices=indices, drop_path_rate=0.4) for indices in ((0, 1, 2, 3), (0, 1))
    )
    rates = [[m.drop_path.rate for m in model.modules() if hasattr(m, 'mixer')] for model in (full, short)]
    assert len(rates[1]) < len(rates[0])
    assert rates[1] == rates[0][: len(rates[1])]
    for name, _ in short.named_parameters():
        assert short.get_layer_depth(name) == full.get_layer_depth(name)
    assert len(short.stage_modules()) == len(full.stage_modules()) == 5
    assert short.stage_modules()[3:] == [[], []]
