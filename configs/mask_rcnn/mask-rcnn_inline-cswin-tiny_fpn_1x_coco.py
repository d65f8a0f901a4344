_base_ = ['../_base_/coco/mask-rcnn.py', '../_base_/coco/schedule_swin_1x.py']
model = dict(
    backbone=dict(
        type='inline.InLineCSwin',
        arch='tiny',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/inline-cswin-tiny.pth', prefix='backbone.'),
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
