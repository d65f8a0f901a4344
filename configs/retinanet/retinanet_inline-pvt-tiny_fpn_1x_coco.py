_base_ = ['../_base_/coco/retinanet.py', '../_base_/coco/schedule_1x.py']
model = dict(
    backbone=dict(
        type='inline.InLinePVT',
        arch='tiny',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/inline-pvt-tiny.pth', prefix='backbone.'),
    ),
    neck=dict(in_channels=[128, 320, 512]),
)
optim_wrapper = dict(optimizer=dict(lr=1e-4))
