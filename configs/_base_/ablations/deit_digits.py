# A plain transformer with a class token on 64 patches of 4 × 4 pixels.
_base_ = 'digits.py'
model = dict(
    backbone=dict(
        type='inline.InLineDeiT',
        arch=dict(embed_dims=48, depth=4, num_heads=4, img_size=32, patch_size=4, mlp_ratio=2),
        out_type='cls_token',
        init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    ),
    head=dict(in_channels=48),
)
