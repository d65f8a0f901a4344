# Small enough for a laptop: the micro backbone, images within 320×240.
_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/finetune/coco-format.py',
    '../_base_/finetune/micro.py',
]
norm_cfg = dict(type='GN', num_groups=8)
model = dict(
    backbone=dict(_delete_=True, **_base_.backbone, out_indices=(1, 2, 3)),
    neck=dict(in_channels=[64, 128, 192], out_channels=64, start_level=0, norm_cfg=norm_cfg),
    bbox_head=dict(in_channels=64, feat_channels=64, stacked_convs=2, norm_cfg=norm_cfg),
)
train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (320, 240)
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (320, 240)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=1e-3))
