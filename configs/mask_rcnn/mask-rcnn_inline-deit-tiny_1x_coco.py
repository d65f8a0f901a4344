# A plain transformer has one stride: Feature2Pyramid makes four levels from the outputs of four blocks.
_base_ = ['../_base_/coco/mask-rcnn.py', '../_base_/coco/schedule_swin_1x.py']
model = dict(
    backbone=dict(
        type='inline.InLineDeiT',
        arch='tiny',
        out_indices=(2, 5, 8, 11),
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/inline-deit-tiny.pth', prefix='backbone.'),
    ),
    neck=dict(
        _delete_=True,
        type='mmseg.Feature2Pyramid',
        embed_dim=192,
        norm_cfg=dict(type='SyncBN', requires_grad=True),
    ),
    rpn_head=dict(in_channels=192, anchor_generator=dict(strides=[4, 8, 16, 32])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=192),
        bbox_head=dict(in_channels=192),
        mask_roi_extractor=dict(out_channels=192),
        mask_head=dict(in_channels=192),
    ),
)
