"""Backbones in half precision on images of 1024×1024: 65,536 tokens at stride 4."""

import pytest
import torch

from tests.models.families import FAMILIES, build


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('family', FAMILIES)
def test_a_large_image_stays_finite_and_near_single_precision(family: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = build(family, img_size=1024, mixers={'type': 'InLine'}).eval()
    image = torch.randn(1, 3, 1024, 1024)
    with torch.inference_mode():
        expected = model(image)
        with torch.autocast('cpu', dtype):
            found = model(image)
    assert len(found) == len(expected)
    for ours, reference in zip(found, expected, strict=True):
        assert ours.isfinite().all()
        assert (ours.float() - reference).norm() < 1e-2 * reference.norm()
