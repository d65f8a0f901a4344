_base_ = 'mask-rcnn_inline-swin-small_fpn_ms-crop-3x_coco.py'
model = dict(
    backbone=dict(mixers=dict(type='Softmax'), init_cfg=dict(checkpoint='checkpoints/swin-small.pth'))
)
