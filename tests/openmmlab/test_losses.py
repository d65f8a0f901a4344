"""Losses that do not depend on the number of processes, on one process."""

from typing import Any

import pytest
import torch
from mmengine.registry import MODELS
from mmseg.models.losses import CrossEntropyLoss as MMSegCrossEntropyLoss


@pytest.mark.parametrize('reduction', ['mean', 'sum', 'none'])
@pytest.mark.parametrize(
    'options', [{}, {'class_weight': [0.2, 1.0, 3.0]}, {'avg_non_ignore': True}, {'use_sigmoid': True}]
)
def test_cross_entropy_equals_that_of_mmseg_on_one_process(reduction: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(2, 3, 5, 4), torch.randint(0, 3, (2, 5, 4))
    labels[0, :2] = 255
    loss = MODELS.build({'type': 'inline.CrossEntropyLoss', 'reduction': reduction, **options})
    expected = MMSegCrossEntropyLoss(reduction=reduction, **options)(scores, labels, ignore_index=255)
    torch.testing.assert_close(loss(scores, labels, ignore_index=255), expected)
