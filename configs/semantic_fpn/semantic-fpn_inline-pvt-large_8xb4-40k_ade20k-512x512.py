_base_ = 'semantic-fpn_inline-pvt-tiny_8xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='large', drop_path_rate=0.1, init_cfg=dict(checkpoint='checkpoints/inline-pvt-large.pth')
    )
)
