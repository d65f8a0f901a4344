# Digits at 32 pixels, 300 steps.
_base_ = '../digits/inline-pvt-micro_digits.py'
model = dict(backbone=dict(arch='nano', img_size=32), head=dict(in_channels=96))
train_dataloader = _base_.train_dataloader
train_dataloader.dataset.pipeline[1].scale = 32
val_dataloader = _base_.val_dataloader
val_dataloader.dataset.pipeline[1].scale = (32, 32)
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.2, by_epoch=False, end=100),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=False),
]
train_cfg = dict(max_iters=300, val_interval=300)
