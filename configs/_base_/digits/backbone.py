# A four-stage InLine PVT that trains on two CPU cores in minutes. It has no absolute positions, since those
# learned on single digits would not transfer to the scenes.
backbone = dict(
    type='inline.InLinePVT',
    arch='micro',
    img_size=48,
    drop_path_rate=0.05,
    # The usual standard deviation of 0.02 is for wide layers; narrow ones learn slowly with it.
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
)
