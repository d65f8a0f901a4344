_base_ = ['../_base_/ade20k/upernet_160k.py']
model = dict(
    backbone=dict(
        type='inline.InLineCSwin',
        arch='tiny',
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/inline-cswin-tiny.pth', prefix='backbone.'),
    ),
    decode_head=dict(in_channels=[64, 128, 256, 512]),
    auxiliary_head=dict(in_channels=256),
)
