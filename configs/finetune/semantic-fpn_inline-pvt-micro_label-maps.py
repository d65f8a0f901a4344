# Small enough for a laptop: the micro backbone, crops of 96 pixels.
_base_ = [
    'mmseg::_base_/models/fpn_r50.py',
    '../_base_/finetune/label-maps.py',
    '../_base_/finetune/micro.py',
]
crop_size = (96, 96)
norm_cfg = dict(type='GN', num_groups=8)
model = dict(
    data_preprocessor=dict(size=crop_size),
    pretrained=None,
    backbone=dict(_delete_=True, **_base_.backbone),
    neck=dict(in_channels=[32, 64, 128, 192], out_channels=64, norm_cfg=norm_cfg),
    decode_head=dict(in_channels=[64, 64, 64, 64], channels=64, norm_cfg=norm_cfg),
)
train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (384, 96)
train_pipeline[3].crop_size = crop_size
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (384, 96)
train_dataloader = dict(batch_size=16, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=1e-3))
