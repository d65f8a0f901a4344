import pytest
import torch

from inline.models.layers import DropPath, PatchEmbed, drop_path_rates


def test_drop_path_keeps_the_mean_and_drops_whole_images() -> None:
    torch.manual_seed(0)
    out = DropPath(0.25).train()(torch.ones(4000, 3, 2))
    images = out[:, 0, 0]
    assert torch.equal(out, images[:, None, None].expand_as(out))
    assert ((images == 0) | (images == 1 / 0.75)).all()
    assert images.mean().item() == pytest.approx(1, abs=0.05)


def test_drop_path_rates_by_hand() -> None:
    assert drop_path_rates(0.3, (1, 2, 1)) == [[0.0], pytest.approx([0.1, 0.2]), [pytest.approx(0.3)]]
    assert drop_path_rates(0.3, (1,)) == [[0.0]]


def test_patch_embed_pads_with_zeros_below_and_on_the_right() -> None:
    embed = PatchEmbed(3, 5, patch_size=4)
    x = torch.randn(1, 3, 6, 9)
    tokens, hw = embed(x)
    assert hw == (2, 3)
    padded = torch.zeros(1, 3, 8, 12)
    padded[..., :6, :9] = x
    torch.testing.assert_close(tokens, embed(padded)[0])
