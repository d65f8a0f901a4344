"""A file that computes something else does not pass."""

import pytest
import torch
from torch import Tensor, nn

from inline.errors import UserError
from inline.export.agreement import check_agreement, relative_difference, shapes_to_try


class Twice(nn.Module):
    def forward(self, image: Tensor) -> tuple[Tensor]:
        return (2 * image,)


def test_differences_are_shares_of_the_largest_output_or_of_one() -> None:
    assert relative_difference([torch.tensor([8.0, 3.0])], [torch.tensor([10.0, 3.0])]) == pytest.approx(0.2)
    assert relative_difference([torch.tensor([0.25])], [torch.tensor([0.5])]) == pytest.approx(0.25)
    assert relative_difference([torch.zeros(2)], [torch.zeros(3)]) == float('inf')
    assert relative_difference([torch.tensor([float('nan')])], [torch.zeros(1)]) != 0


@pytest.mark.parametrize('wrong', [lambda image: [2.001 * image], lambda image: [2 * image * float('nan')]])
def test_a_file_that_differs_is_refused_with_the_size(wrong: object) -> None:
    with pytest.raises(
        UserError, match=r'differs from the model by .* for 1 images of 40×50.*nothing was written'
    ):
        check_agreement(Twice(), wrong, [(1, 40, 50)], 3)  # type: ignore[arg-type]


def test_a_file_that_is_wrong_at_one_size_alone_is_refused() -> None:
    def run(image: Tensor) -> list[Tensor]:
        return [2 * image if image.shape[-1] == 64 else 3 * image]

    assert check_agreement(Twice(), run, [(1, 64, 64)], 3) == 0
    with pytest.raises(UserError, match='images of'):
        check_agreement(Twice(), run, shapes_to_try((64, 64), dynamic=True), 3)


@pytest.mark.parametrize('size', [(33, 33), (48, 64), (33, 224), (64, 64), (224, 224)])
def test_other_sizes_and_batches_are_tried_where_they_are_open(size: tuple[int, int]) -> None:
    assert shapes_to_try((48, 64), dynamic=False) == [(1, 48, 64)]
    own, *others = shapes_to_try(size, dynamic=True)
    assert own == (1, *size)
    assert len({(height, width) for _, height, width in others} - {size}) == len(others) == 4
    assert {batch for batch, *_ in others} == {1, 2, 3}
    assert any(height % 32 and width % 32 for _, height, width in others)
    assert all(min(height, width) >= 33 for _, height, width in others)
