_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/tiny_imagenet/detection.py',
    '../_base_/digits/backbone.py',
]
norm_cfg = dict(type='GN', num_groups=8)
model = dict(
    backbone=dict(_delete_=True, **_base_.backbone, out_indices=(1, 2, 3)),
    neck=dict(in_channels=[64, 128, 192], out_channels=64, start_level=0, num_outs=4, norm_cfg=norm_cfg),
    bbox_head=dict(
        type='inline.RetinaHead',
        num_classes=200,
        in_channels=64,
        feat_channels=64,
        stacked_convs=2,
        norm_cfg=norm_cfg,
        anchor_generator=dict(octave_base_scale=3, strides=[8, 16, 32, 64]),
    ),
)
