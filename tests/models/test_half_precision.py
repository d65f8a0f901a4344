"""Half precision: backbones on images of 1024×1024 (65,536 tokens at stride 4), gradients in float16."""

from typing import Any

import pytest
import torch

from inline.models.block import Block
from inline.models.mixers import MIXERS, build_mixer
from inline.models.mixers.inline import AFFINE_RELU
from inline.ops import KERNELS, inline_attention, inline_attention_naive
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


def test_attention_of_each_head_is_in_float32_under_autocast_on_a_cpu() -> None:
    """Only in inference: as accurate as its inputs, and a result in their type."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 100, 16, dtype=torch.bfloat16) + 3 for _ in range(3))
    key_mask = torch.rand(2, 100) < 0.7
    exact = inline_attention_naive(q.double(), k.double(), v.double(), key_mask=key_mask)
    with torch.autocast('cpu', torch.bfloat16):
        with torch.no_grad():
            found = inline_attention(q, k, v, key_mask=key_mask)
        trained = inline_attention(q, k, v, key_mask=key_mask)
    assert found.dtype == trained.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=0.01, atol=1e-4)
    assert (found - exact).norm() < (trained - exact).norm() < 0.02 * exact.norm()


def test_residual_stream_keeps_float32_under_autocast() -> None:
    torch.manual_seed(0)
    block = Block(8, build_mixer({'type': 'InLine'}, 8, 2), mlp_ratio=2, drop_path=0.0)
    tokens = 1000 + torch.randn(2, 12, 8)
    with torch.autocast('cpu', torch.bfloat16):
        with_gradient = block(tokens, (3, 4))
        with torch.no_grad():
            without = block(tokens, (3, 4))
    assert with_gradient.dtype == without.dtype == torch.float32
    # Branches may be rounded differently; a rounded stream would be wrong by up to 4.
    torch.testing.assert_close(without, with_gradient.detach(), rtol=0, atol=1e-2)


# All but kernels with negative values that are normalised by division: scores of some queries sum to almost
# zero, and their true gradients exceed the range of float16.
FP16_CONFIGS: list[dict[str, Any]] = [
    *({'type': name} for name in sorted(MIXERS)),
    *({'type': 'Linear', 'kernel': kernel} for kernel in ('exp', 'elu', AFFINE_RELU)),
    *({'type': 'InLine', 'kernel': kernel} for kernel in (*sorted({*KERNELS} - {'identity'}), AFFINE_RELU)),
    *(
        {'type': 'InLine', 'kernel': kernel, 'injective': False}
        for kernel in ('relu', 'exp', 'elu', AFFINE_RELU)
    ),
    {'type': 'TransNormer', 'variant': 'T1'},
]


@pytest.mark.parametrize('config', FP16_CONFIGS, ids=lambda config: '-'.join(map(str, config.values())))
def test_gradients_are_finite_in_float16(config: dict[str, Any]) -> None:
    """Heads of four channels, so that some queries are zero or almost zero after relu."""
    for seed in range(10):
        torch.manual_seed(seed)
        mixer = build_mixer(config, 16, 4)
        x = torch.randn(2, 14 * 14, 16, requires_grad=True)
        with torch.autocast('cpu', torch.float16):
            loss = mixer(x, (14, 14), x).float().square().mean()
        leaves = {'input': x, **dict(mixer.named_parameters())}
        for scale in (1, 64, 1024):
            gradients = torch.autograd.grad(scale * loss, list(leaves.values()), retain_graph=True)
            for name, gradient in zip(leaves, gradients, strict=True):
                assert gradient.isfinite().all(), f'{name}, seed {seed}, loss scale {scale}'
                assert gradient.any(), f'{name}, seed {seed}, loss scale {scale}'
