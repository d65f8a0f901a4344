_base_ = 'cascade-mask-rcnn_inline-swin-tiny_fpn_ms-crop-1x_coco.py'
model = dict(
    backbone=dict(
        arch='base', drop_path_rate=0.4, init_cfg=dict(checkpoint='checkpoints/inline-swin-base.pth')
    ),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
