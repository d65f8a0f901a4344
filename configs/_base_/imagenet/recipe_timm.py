# Changes for PVT and CSwin: higher warm-up and minimum learning rates, ten more epochs at the minimum, no
# gradient clipping.
_base_ = 'recipe.py'
optim_wrapper = dict(clip_grad=None)
param_scheduler = [
    dict(type='LinearLR', start_factor=2e-3, by_epoch=True, end=20, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min_ratio=2e-2, by_epoch=True, begin=20, end=300),
]
train_cfg = dict(max_epochs=310)
