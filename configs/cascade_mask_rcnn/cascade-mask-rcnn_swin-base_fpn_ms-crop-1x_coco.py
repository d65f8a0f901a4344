_base_ = 'cascade-mask-rcnn_inline-swin-base_fpn_ms-crop-1x_coco.py'
model = dict(
    backbone=dict(mixers=dict(type='Softmax'), init_cfg=dict(checkpoint='checkpoints/swin-base.pth'))
)
