_base_ = 'mask-rcnn_inline-pvt-tiny_fpn_1x_coco.py'
model = dict(
    backbone=dict(
        arch='small', drop_path_rate=0.1, init_cfg=dict(checkpoint='checkpoints/inline-pvt-small.pth')
    )
)
