# The settings of Swin in mmseg.
_base_ = [
    'mmseg::_base_/models/upernet_r50.py',
    'mmseg::_base_/datasets/ade20k.py',
    '../runtime/mmseg.py',
]
model = dict(
    data_preprocessor=dict(size=(512, 512)),
    pretrained=None,
    backbone=dict(_delete_=True),
    decode_head=dict(num_classes=150),
    auxiliary_head=dict(num_classes=150),
)
train_dataloader = dict(batch_size=2)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, weight_decay=0.01, betas=(0.9, 0.999)),
    paramwise_cfg=dict(custom_keys=dict(norm=dict(decay_mult=0.0), position=dict(decay_mult=0.0))),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=160000),
]
train_cfg = dict(type='inline.ResumableIterTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(enable=False, base_batch_size=16)
