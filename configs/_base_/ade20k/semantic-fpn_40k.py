# PVT's settings, with a total batch size of 32 as in its repository (Agent-Attention uses 16).
_base_ = [
    'mmseg::_base_/models/fpn_r50.py',
    'mmseg::_base_/datasets/ade20k.py',
    '../runtime/mmseg.py',
]
model = dict(
    data_preprocessor=dict(size=(512, 512)),
    pretrained=None,
    backbone=dict(_delete_=True),
    decode_head=dict(num_classes=150),
)
train_dataloader = dict(batch_size=4)
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=2e-4, weight_decay=1e-4))
param_scheduler = [dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=0, end=40000)]
train_cfg = dict(type='inline.ResumableIterTrainLoop', max_iters=40000, val_interval=4000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(enable=False, base_batch_size=32)
