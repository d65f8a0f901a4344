_base_ = '../_base_/tiny_imagenet/classification.py'
model = dict(
    backbone=dict(
        type='inline.InLineSwin',
        arch=dict(
            embed_dims=(32, 64, 128, 192),
            depths=(2, 2, 2, 1),
            num_heads=(2, 4, 8, 12),
            inline_depths=(2, 2, 2, 0),
            mlp_ratios=(4, 4, 4, 3),
        ),
        img_size=64,
        out_indices=(3,),
        drop_path_rate=0.05,
        init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    ),
    head=dict(in_channels=192),
)
