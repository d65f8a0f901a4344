_base_ = ['../_base_/ade20k/upernet_160k.py']
model = dict(
    backbone=dict(
        type='inline.InLineSwin',
        arch='tiny',
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/inline-swin-tiny.pth', prefix='backbone.'),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
