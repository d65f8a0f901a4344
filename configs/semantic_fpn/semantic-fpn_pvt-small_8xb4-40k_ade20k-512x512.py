_base_ = 'semantic-fpn_inline-pvt-small_8xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(mixers=dict(type='Softmax'), init_cfg=dict(checkpoint='checkpoints/pvt-small.pth'))
)
