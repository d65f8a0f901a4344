"""Layers: drop path, patch embedding, MLP."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from inline.models import block as block_module
from inline.models.block import DropPath, Mlp, drop_path_rates
from inline.models.layers import PatchEmbed
from inline.ops.products import HAS_ONEDNN


def test_drop_path_preserves_the_mean_and_drops_images() -> None:
    torch.manual_seed(0)
    out = DropPath(0.25).train()(torch.ones(4000, 3, 2))
    images = out[:, 0, 0]
    assert torch.equal(out, images[:, None, None].expand_as(out))
    assert ((images == 0) | (images == 1 / 0.75)).all()
    assert images.mean().item() == pytest.approx(1, abs=0.05)


def test_drop_path_rates_grow_linearly() -> None:
    assert drop_path_rates(0.3, (1, 2, 1)) == [[0.0], pytest.approx([0.1, 0.2]), [pytest.approx(0.3)]]
    assert drop_path_rates(0.3, (1,)) == [[0.0]]


def test_patch_embed_zero_pads_bottom_and_right() -> None:
    embed = PatchEmbed(3, 5, patch_size=4)
    x = torch.randn(1, 3, 6, 9)
    tokens, hw = embed(x)
    assert hw == (2, 3)
    padded = torch.zeros(1, 3, 8, 12)
    padded[..., :6, :9] = x
    torch.testing.assert_close(tokens, embed(padded)[0])


@pytest.mark.parametrize('limit', [0, 40, 10**9])
def test_chunked_mlp_matches_unchunked(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """13 tokens with 8 hidden channels, in chunks of 3 tokens, of 5, or at once."""
    torch.manual_seed(0)
    mlp, x = Mlp(4, 8).double(), torch.randn(1, 13, 4, dtype=torch.float64)
    # With gradients it is never chunked.
    expected = mlp(x)
    monkeypatch.setattr(block_module, 'CHUNK_ABOVE', limit)
    monkeypatch.setattr(block_module, 'CHUNK_SIZE', 24 if limit == 0 else 40)
    calls: list[int] = []
    gelu = torch.nn.functional.gelu
    monkeypatch.setattr(torch.nn.functional, 'gelu', lambda x: calls.append(x.shape[-2]) or gelu(x))
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), expected, rtol=1e-12, atol=1e-12)
    assert calls == {0: [3, 3, 3, 3, 1], 40: [5, 5, 3], 10**9: [13]}[limit]


@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize('bias', [False, True])
def test_a_compiled_mlp_is_chunked_by_the_size_of_each_call(
    bias: bool, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 tokens at once, and 32 in chunks of 12, in float32; one operator for oneDNN."""
    torch.compiler.reset()
    torch.manual_seed(0)
    mlp = Mlp(4, 8)
    if not bias:
        mlp.fc1.bias = mlp.fc2.bias = None
    monkeypatch.setattr(block_module, 'CHUNK_ABOVE', 128)
    monkeypatch.setattr(block_module, 'CHUNK_SIZE', 96)
    compiled = torch.compile(mlp, fullgraph=True, dynamic=dynamic, backend='aot_eager')
    with torch.no_grad():
        for batch, count in ((1, 16), (2, 16)):
            x = torch.randn(batch, count, 4)
            with profile(activities=[ProfilerActivity.CPU]) as trace:
                found = compiled(x)
            products = [event for event in trace.events() if event.name == 'mkldnn::_linear_pointwise']
            assert len(products) == HAS_ONEDNN * 2 * (1 if batch == 1 else 3)
            torch.testing.assert_close(found, mlp.double()(x.double()).float())
            mlp.float()


def test_the_operator_of_an_mlp_is_valid() -> None:
    x, weight1, weight2 = torch.randn(2, 3, 4), torch.randn(8, 4), torch.randn(4, 8)
    for biases in ((torch.randn(8), torch.randn(4)), (None, None)):
        torch.library.opcheck(torch.ops.inline.mlp, (x, weight1, biases[0], weight2, biases[1]))
