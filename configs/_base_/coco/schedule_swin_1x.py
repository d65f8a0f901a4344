# Like Swin in mmdet: a longer warm-up, more weight decay, none on norms and relative position biases.
_base_ = 'schedule_1x.py'
optim_wrapper = dict(
    optimizer=dict(lr=1e-4, weight_decay=0.05),
    paramwise_cfg=dict(custom_keys=dict(norm=dict(decay_mult=0.0), position=dict(decay_mult=0.0))),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
