"""The stand-ins for parts of the toolboxes compute what those parts do."""

import pytest
import torch
from torch import nn

from inline.export.traceable import BinPool, ScaleUp, make_traceable


@pytest.mark.parametrize('bins', [(1, 1), (2, 2), (3, 5), (6, 6)])
@pytest.mark.parametrize('size', [(1, 1), (2, 3), (6, 12), (7, 11), (16, 5)])
def test_bins_are_those_of_adaptive_pooling(bins: tuple[int, int], size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(BinPool(bins)(x), nn.AdaptiveAvgPool2d(bins)(x))


def test_scaling_up_is_that_of_mmseg() -> None:
    from mmseg.models.utils import Upsample

    x = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    theirs = Upsample(scale_factor=2, mode='bilinear', align_corners=False)
    model = make_traceable(nn.Sequential(theirs))
    assert isinstance(model[0], ScaleUp)
    torch.testing.assert_close(model(x), theirs(x))


def test_the_model_itself_keeps_its_parts() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Sequential(nn.AdaptiveAvgPool2d(2)), nn.AdaptiveAvgPool2d((None, 3))
    )
    copied = make_traceable(model)
    assert isinstance(model[1][0], nn.AdaptiveAvgPool2d)
    assert isinstance(copied[1][0], BinPool)
    # An open side of the output is none that bins can have.
    assert isinstance(copied[2], nn.AdaptiveAvgPool2d)
    x = torch.randn(1, 3, 9, 13)
    torch.testing.assert_close(copied(x), model(x))
