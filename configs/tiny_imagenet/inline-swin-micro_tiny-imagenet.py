_base_ = '../_base_/tiny_imagenet/classification.py'
model = dict(
    backbone=dict(
        type='inline.InLineSwin',
        arch='micro',
        img_size=64,
        out_indices=(3,),
        drop_path_rate=0.05,
        init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    ),
    head=dict(in_channels=192),
)
