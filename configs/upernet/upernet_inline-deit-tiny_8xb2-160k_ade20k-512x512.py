# A plain transformer has one stride: Feature2Pyramid makes four levels from the outputs of four blocks.
_base_ = '../_base_/ade20k/upernet_160k.py'
model = dict(
    backbone=dict(
        type='inline.InLineDeiT',
        arch='tiny',
        out_indices=(2, 5, 8, 11),
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/inline-deit-tiny.pth', prefix='backbone.'),
    ),
    neck=dict(type='Feature2Pyramid', embed_dim=192, norm_cfg=dict(type='SyncBN', requires_grad=True)),
    decode_head=dict(in_channels=[192, 192, 192, 192]),
    auxiliary_head=dict(in_channels=192),
)
