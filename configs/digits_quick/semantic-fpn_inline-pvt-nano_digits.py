_base_ = '../digits/semantic-fpn_inline-pvt-micro_digits.py'
model = dict(backbone=dict(arch='nano'), neck=dict(in_channels=[24, 48, 64, 96]))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.2, by_epoch=False, end=20),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=False),
]
train_cfg = dict(max_iters=100, val_interval=100)
