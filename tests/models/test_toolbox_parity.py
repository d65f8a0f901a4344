"""With softmax in every block, DeiT, PVT and Swin match the models of the toolboxes."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from inline.models import InLineDeiT, InLinePVT, InLineSwin

SOFTMAX = {'type': 'Softmax'}
ARCH = {'embed_dims': (8, 16, 32, 64), 'depths': (2, 2, 2, 2), 'num_heads': (1, 2, 4, 8)}


def copy_weights(ours: nn.Module, theirs: nn.Module, key_of: Callable[[str], str]) -> None:
    """Fill our model with random weights and copy all of them to theirs."""
    torch.manual_seed(0)
    state = theirs.state_dict()
    remaining = {key for key in state if not key.endswith('relative_position_index')}
    with torch.no_grad():
        for key, value in ours.state_dict().items():
            nn.init.normal_(value, std=0.2)
            target = state[key_of(key)]
            table = value.flatten(2).transpose(1, 2) if 'position.weight' in key else value
            target.copy_(table.reshape(target.shape))
            remaining.discard(key_of(key))
    assert not remaining


def assert_equal_features(
    ours: nn.Module, theirs: nn.Module, hw: tuple[int, int], levels: slice = slice(None)
) -> None:
    for model in (ours, theirs):
        model.eval()
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-6
    x = torch.randn(2, 3, *hw, dtype=torch.float64)
    with torch.no_grad():
        pairs = list(zip(ours(x), theirs(x), strict=True))[levels]
    assert pairs
    for own, other in pairs:
        torch.testing.assert_close(own, other, rtol=0, atol=1e-10)


def rename(key: str, rules: list[tuple[str, str]]) -> str:
    for pattern, replacement in rules:
        key = re.sub(pattern, replacement, key)
    return key


@pytest.mark.slow
@pytest.mark.parametrize('hw', [(64, 64), (64, 96)])
def test_swin(hw: tuple[int, int]) -> None:
    from mmpretrain.models import SwinTransformer

    ours = InLineSwin(ARCH, img_size=128, mixers={**SOFTMAX, 'window_size': 4}).double()
    theirs = SwinTransformer(
        {'embed_dims': 8, 'depths': [2] * 4, 'num_heads': [1, 2, 4, 8]},
        img_size=128,
        window_size=4,
        out_indices=(0, 1, 2, 3),
        pad_small_map=True,
    ).double()
    rules = [
        (r'stages\.0\.downsample\.proj', 'patch_embed.projection'),
        (r'stages\.0\.downsample', 'patch_embed'),
        (r'stages\.(\d)\.downsample', lambda match: f'stages.{int(match[1]) - 1}.downsample'),
        (r'mixer\.position\.weight', 'attn.w_msa.relative_position_bias_table'),
        (r'mixer\.', 'attn.w_msa.'),
        (r'mlp\.fc1', 'ffn.layers.0.0'),
        (r'mlp\.fc2', 'ffn.layers.1'),
        (r'out_norms\.(\d)', r'norm\1'),
    ]
    copy_weights(ours, theirs, lambda key: rename(key, rules))
    # Merged patches are (column, row, channel) in our model and (channel, row, column) in theirs.
    with torch.no_grad():
        for stage in list(theirs.stages)[:3]:
            merge = stage.downsample
            for weight in (merge.norm.weight, merge.norm.bias, merge.reduction.weight):
                weight.copy_(weight.unflatten(-1, (2, 2, -1)).transpose(-3, -1).flatten(-3))
    # Their padding is attended to where windows do not divide the map, so those stages are not compared.
    assert_equal_features(ours, theirs, hw, levels=slice(2))


@pytest.mark.parametrize('hw', [(64, 64), (96, 64)])
def test_pvt(hw: tuple[int, int]) -> None:
    from mmdet.models.backbones import PyramidVisionTransformer

    ours = InLinePVT({**ARCH, 'mlp_ratios': (8, 8, 4, 4)}, img_size=64, mixers=SOFTMAX).double()
    theirs = PyramidVisionTransformer(
        embed_dims=8, num_layers=[2] * 4, num_heads=[1, 2, 4, 8], pretrain_img_size=64
    ).double()

    def key_of(key: str) -> str:
        key = rename(
            key,
            [
                (r'stages\.(\d)\.downsample\.proj', r'layers.\1.0.projection'),
                (r'stages\.(\d)\.downsample', r'layers.\1.0'),
                (r'stages\.(\d)\.position\.weight', r'layers.\1.1.0.pos_embed'),
                (r'mixer\.qkv\.', 'attn.attn.in_proj_'),
                (r'mixer\.proj', 'attn.attn.out_proj'),
                (r'mixer\.reduction\.proj', 'attn.sr'),
                (r'mixer\.reduction\.norm', 'attn.norm'),
                (r'mlp\.fc1', 'ffn.layers.0'),
                (r'mlp\.fc2', 'ffn.layers.3'),
            ],
        )
        return re.sub(
            r'stages\.(\d)\.blocks\.(\d)', lambda match: f'layers.{match[1]}.1.{int(match[2]) + 1}', key
        )

    copy_weights(ours, theirs, key_of)
    assert_equal_features(ours, theirs, hw)


def test_deit() -> None:
    from mmpretrain.models import VisionTransformer

    ours = InLineDeiT(
        {'embed_dims': 16, 'depth': 3, 'num_heads': 2}, img_size=64, mixers=SOFTMAX, out_type='cls_token'
    ).double()
    theirs = VisionTransformer(
        {'embed_dims': 16, 'num_layers': 3, 'num_heads': 2, 'feedforward_channels': 64}, img_size=64
    ).double()
    state: dict[str, Tensor] = {}
    torch.manual_seed(0)
    with torch.no_grad():
        for key, value in ours.state_dict().items():
            nn.init.normal_(value, std=0.2)
            state[
                rename(
                    key,
                    [
                        (r'^class_token\.weight', 'cls_token'),
                        (r'patch_embed\.proj', 'patch_embed.projection'),
                        (r'blocks\.(\d)\.norm', r'layers.\1.ln'),
                        (r'blocks\.', 'layers.'),
                        (r'mixer\.', 'attn.'),
                        (r'mlp\.fc1', 'ffn.layers.0.0'),
                        (r'mlp\.fc2', 'ffn.layers.1'),
                        (r'^norm\.', 'ln1.'),
                    ],
                )
            ] = value
    patches = state.pop('position.weight').flatten(2).transpose(1, 2)
    state['pos_embed'] = torch.cat([state.pop('class_token.position'), patches], dim=1)
    theirs.load_state_dict(state)
    assert_equal_features(ours, theirs, (64, 64))
