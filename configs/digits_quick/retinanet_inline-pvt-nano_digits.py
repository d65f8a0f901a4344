_base_ = '../digits/retinanet_inline-pvt-micro_digits.py'
model = dict(backbone=dict(arch='nano'), neck=dict(in_channels=[48, 64, 96]))
train_cfg = dict(max_iters=80, val_interval=80)
