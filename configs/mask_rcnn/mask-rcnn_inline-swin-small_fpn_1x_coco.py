_base_ = 'mask-rcnn_inline-swin-tiny_fpn_1x_coco.py'
model = dict(
    backbone=dict(
        arch='small', drop_path_rate=0.2, init_cfg=dict(checkpoint='checkpoints/inline-swin-small.pth')
    )
)
