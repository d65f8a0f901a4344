"""Backbones in half precision on images of 1024×1024: 65,536 tokens at stride 4."""

import pytest
import torch

from inline.models.block import Block
from inline.models.mixers import build_mixer
from tests.models.families import FAMILIES, build


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('family', FAMILIES)
def test_large_image_is_finite_and_accurate(family: str, dtype: torch.dtype) -> None:
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


def test_residual_stream_keeps_float32_under_autocast() -> None:
    torch.manual_seed(0)
    block = Block(8, build_mixer({'type': 'InLine'}, 8, 2), mlp_ratio=2, drop_path=0.0)
    tokens = 1000 + torch.randn(2, 12, 8)
    with torch.autocast('cpu', torch.bfloat16):
        with_gradient = block(tokens, (3, 4))
        with torch.no_grad():
            without = block(tokens, (3, 4))
    assert with_gradient.dtype == without.dtype == torch.float32
    torch.testing.assert_close(without, with_gradient.detach(), rtol=0, atol=1e-3)
