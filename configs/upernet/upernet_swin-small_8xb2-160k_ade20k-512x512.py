_base_ = 'upernet_inline-swin-small_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(mixers=dict(type='Softmax'), init_cfg=dict(checkpoint='checkpoints/swin-small.pth'))
)
