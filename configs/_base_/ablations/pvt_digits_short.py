# The pyramid of pvt_digits.py with one block per stage and fewer steps, to compare many mechanisms
# with several seeds. docs/ablations.md explains the choice.
_base_ = 'pvt_digits.py'
model = dict(backbone=dict(arch=dict(depths=(1, 1, 1))))
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.2, by_epoch=False, end=150),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=False),
]
train_cfg = dict(max_iters=500, val_interval=500)
default_hooks = dict(checkpoint=dict(interval=500))
