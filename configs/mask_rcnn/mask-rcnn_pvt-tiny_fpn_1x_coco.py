_base_ = 'mask-rcnn_inline-pvt-tiny_fpn_1x_coco.py'
model = dict(backbone=dict(mixers=dict(type='Softmax'), init_cfg=dict(checkpoint='checkpoints/pvt-tiny.pth')))
