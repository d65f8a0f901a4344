# AdamW with a short warm-up and a cosine, by iteration. Each config sets `max_iters`.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, fused=True),
    clip_grad=dict(max_norm=1.0),
)
# Without `end` the cosine ends at the last iteration. The warm-up multiplies its beginning.
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=100),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=False),
]
val_cfg = dict()
test_cfg = dict()
