_base_ = [
    '../_base_/coco/mask-rcnn.py',
    '../_base_/coco/schedule_swin_3x.py',
    '../_base_/coco/multi-scale.py',
]
model = dict(
    backbone=dict(
        type='inline.InLineSwin',
        arch='tiny',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/inline-swin-tiny.pth', prefix='backbone.'),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
train_dataloader = dict(dataset=dict(pipeline=_base_.multi_scale_pipeline))
