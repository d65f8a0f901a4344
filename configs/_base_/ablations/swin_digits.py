# A pyramid of four stages on digits at 64 pixels; the first map has 16 × 16 tokens.
_base_ = 'digits.py'
model = dict(
    backbone=dict(
        type='inline.InLineSwin',
        arch=dict(
            embed_dims=(24, 48, 64, 96), depths=(2, 2, 2, 1), num_heads=(2, 4, 4, 6), mlp_ratios=(2, 2, 2, 2)
        ),
        img_size=64,
        out_indices=(3,),
        init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    ),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(in_channels=96),
)
train_cfg = dict(max_iters=400, val_interval=400)
default_hooks = dict(checkpoint=dict(interval=400))
