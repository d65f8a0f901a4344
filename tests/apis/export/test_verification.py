"""Verification rejects an exported file whose outputs differ from the model."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from torch import Tensor, nn

from inline.apis.export import verification
from inline.apis.export.verification import check_outputs, relative_difference, shapes_to_check
from inline.utils.errors import UserError


class Twice(nn.Module):
    def forward(self, image: Tensor) -> tuple[Tensor]:
        return (2 * image,)


def test_differences_are_relative_to_the_largest_output_or_to_one() -> None:
    assert relative_difference([torch.tensor([8.0, 3.0])], [torch.tensor([10.0, 3.0])]) == pytest.approx(0.2)
    assert relative_difference([torch.tensor([0.25])], [torch.tensor([0.5])]) == pytest.approx(0.25)
    assert relative_difference([torch.zeros(2)], [torch.zeros(3)]) == float('inf')
    assert relative_difference([torch.tensor([float('nan')])], [torch.zeros(1)]) != 0


@pytest.mark.parametrize('wrong', [lambda image: [2.001 * image], lambda image: [2 * image * float('nan')]])
def test_different_outputs_raise_with_the_size(wrong: object) -> None:
    with pytest.raises(
        UserError, match=r'differ from the model by .* for a batch of 1 at 40×50.*nothing was written'
    ):
        check_outputs(Twice(), wrong, [(1, 40, 50)], 3)  # type: ignore[arg-type]


def test_difference_at_one_size_raises() -> None:
    def run(image: Tensor) -> list[Tensor]:
        return [2 * image if image.shape[-1] == 64 else 3 * image]

    assert check_outputs(Twice(), run, [(1, 64, 64)], 3) == 0
    with pytest.raises(UserError, match='for a batch of'):
        check_outputs(Twice(), run, shapes_to_check((64, 64), dynamic=True), 3)


@pytest.mark.parametrize('size', [(33, 33), (48, 64), (33, 224), (64, 64), (224, 224)])
def test_dynamic_exports_are_checked_at_other_shapes(size: tuple[int, int]) -> None:
    assert shapes_to_check((48, 64), dynamic=False) == [(1, 48, 64)]
    first, *others = shapes_to_check(size, dynamic=True)
    assert first == (1, *size)
    assert len({(height, width) for _, height, width in others} - {size}) == len(others) == 4
    assert {batch for batch, *_ in others} == {1, 2, 3}
    assert any(height % 32 and width % 32 for _, height, width in others)
    assert all(min(height, width) >= 33 for _, height, width in others)


def test_metrics_of_every_toolbox_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of mmseg are numpy.float32."""
    metrics = {'mIoU': np.float32(40.5), 'accuracy/top1': 90.0, 'table': 'per class'}
    runner = SimpleNamespace(model=nn.Linear(1, 1), test=lambda: metrics)
    monkeypatch.setattr(verification, 'build_runner', lambda _: runner)
    assert verification.evaluate(Config(), nn.Linear(1, 1)) == {'mIoU': 40.5, 'accuracy/top1': 90.0}
