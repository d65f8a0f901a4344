_base_ = 'retinanet_inline-pvt-small_fpn_1x_coco.py'
model = dict(
    backbone=dict(mixers=dict(type='Softmax'), init_cfg=dict(checkpoint='checkpoints/pvt-small.pth'))
)
