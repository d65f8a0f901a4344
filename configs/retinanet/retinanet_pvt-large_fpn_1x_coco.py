_base_ = 'retinanet_inline-pvt-large_fpn_1x_coco.py'
model = dict(
    backbone=dict(mixers=dict(type='Softmax'), init_cfg=dict(checkpoint='checkpoints/pvt-large.pth'))
)
