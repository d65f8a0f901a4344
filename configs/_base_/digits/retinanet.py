# RetinaNet with narrow layers and four levels, for the micro backbone and images below 100 pixels. A config
# sets the backbone and the number of classes.
_base_ = 'mmdet::_base_/models/retinanet_r50_fpn.py'
norm_cfg = dict(type='GN', num_groups=8)
model = dict(
    neck=dict(in_channels=[64, 128, 192], out_channels=64, start_level=0, num_outs=4, norm_cfg=norm_cfg),
    bbox_head=dict(
        type='inline.RetinaHead',
        in_channels=64,
        feat_channels=64,
        stacked_convs=2,
        norm_cfg=norm_cfg,
        anchor_generator=dict(octave_base_scale=3, strides=[8, 16, 32, 64]),
    ),
)
