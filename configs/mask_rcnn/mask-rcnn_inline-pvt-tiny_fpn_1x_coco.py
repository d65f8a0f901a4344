_base_ = ['../_base_/coco/mask-rcnn.py', '../_base_/coco/schedule_1x.py']
model = dict(
    backbone=dict(
        type='inline.InLinePVT',
        arch='tiny',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/inline-pvt-tiny.pth', prefix='backbone.'),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
