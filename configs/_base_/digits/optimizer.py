# AdamW with a short warm-up and a cosine, by iteration. A leaf sets `max_iters`.
optim_wrapper = dict(
    type='OptimWrapper',
    # A short memory of the squared gradients: with the usual 0.999 so small a network stays at chance
    # level for the first thousand steps.
    optimizer=dict(type='AdamW', lr=3e-4, betas=(0.9, 0.9), weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
    paramwise_cfg=dict(
        norm_decay_mult=0.0, bias_decay_mult=0.0, custom_keys=dict(position=dict(decay_mult=0.0))
    ),
)
# The cosine runs to the last iteration, whatever that is; the warm-up multiplies its beginning.
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=100),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=False),
]
val_cfg = dict()
test_cfg = dict()
