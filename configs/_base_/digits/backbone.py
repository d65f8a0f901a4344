# A four-stage InLine PVT that trains on two CPU cores in minutes. Every output has a norm: without it the
# gradients of a detector trained from scratch are unstable.
backbone = dict(
    type='inline.InLinePVT',
    arch=dict(
        embed_dims=(32, 64, 128, 192),
        depths=(1, 2, 2, 1),
        num_heads=(2, 4, 8, 12),
        mlp_ratios=(4, 4, 4, 3),
    ),
    img_size=48,
    # Absolute positions learned on single digits would not transfer to the scenes.
    absolute_position=False,
    out_norm=True,
    drop_path_rate=0.05,
    # The usual standard deviation of 0.02 is for wide layers; narrow ones learn slowly with it.
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
)
