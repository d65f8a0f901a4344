# AdamW with a short warm-up and a cosine, by iteration. A leaf sets `max_iters`.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
    paramwise_cfg=dict(
        norm_decay_mult=0.0, bias_decay_mult=0.0, custom_keys=dict(position=dict(decay_mult=0.0))
    ),
)
# Without an end the cosine runs to the last iteration.
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=False, begin=100),
]
val_cfg = dict()
test_cfg = dict()
