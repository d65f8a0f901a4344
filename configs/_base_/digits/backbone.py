# A four-stage InLine pyramid that trains on two CPU cores in minutes. Every level passes a norm of its
# own: without it the gradients of a detector trained from scratch are unstable.
backbone = dict(
    type='inline.InLinePVT',
    arch=dict(
        embed_dims=(32, 64, 128, 192),
        depths=(1, 2, 2, 1),
        num_heads=(2, 4, 8, 12),
        mlp_ratios=(4, 4, 4, 3),
    ),
    img_size=48,
    # A digit may be anywhere: what is learned of absolute places does not carry over to the scenes.
    absolute_position=False,
    out_norm=True,
    drop_path_rate=0.05,
    # The usual deviation of 0.02 is meant for wide layers; in these narrow ones learning starts late.
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
)
