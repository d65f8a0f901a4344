_base_ = ['mmdet::_base_/models/mask-rcnn_r50_fpn.py', '../_base_/digits/detection.py']
# Narrow heads, few RoIs, one sample per bin: on a CPU the backward pass of RoIAlign is the largest cost.
norm_cfg = dict(type='GN', num_groups=8)
roi_layer = dict(type='RoIAlign', output_size=7, sampling_ratio=1)
model = dict(
    backbone=dict(_delete_=True, **_base_.backbone),
    neck=dict(in_channels=[32, 64, 128, 192], out_channels=64, num_outs=4, norm_cfg=norm_cfg),
    rpn_head=dict(
        in_channels=64, feat_channels=64, anchor_generator=dict(scales=[5], strides=[4, 8, 16, 32])
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64, roi_layer=roi_layer),
        bbox_head=dict(in_channels=64, fc_out_channels=256, num_classes=10),
        mask_roi_extractor=dict(out_channels=64, roi_layer=roi_layer),
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64, num_classes=10, norm_cfg=norm_cfg),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=300, max_per_img=100),
        rcnn=dict(sampler=dict(num=32), mask_size=14),
    ),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100)),
)
train_cfg = dict(type='inline.ResumableIterTrainLoop', max_iters=400, val_interval=100)
