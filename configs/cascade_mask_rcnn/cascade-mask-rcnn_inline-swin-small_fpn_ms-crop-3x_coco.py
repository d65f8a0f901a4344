_base_ = 'cascade-mask-rcnn_inline-swin-tiny_fpn_ms-crop-3x_coco.py'
model = dict(
    backbone=dict(
        arch='small', drop_path_rate=0.1, init_cfg=dict(checkpoint='checkpoints/inline-swin-small.pth')
    )
)
