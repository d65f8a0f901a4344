# 256 patches of 4 × 4 pixels and a class token.
_base_ = '../_base_/tiny_imagenet/classification.py'
model = dict(
    backbone=dict(
        type='inline.InLineDeiT',
        arch='micro',
        out_type='cls_token',
        drop_path_rate=0.05,
        init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    ),
    neck=None,
    head=dict(in_channels=128),
)
