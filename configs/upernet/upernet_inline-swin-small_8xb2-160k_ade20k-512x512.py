_base_ = 'upernet_inline-swin-tiny_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(arch='small', init_cfg=dict(checkpoint='checkpoints/inline-swin-small.pth')))
