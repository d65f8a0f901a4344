_base_ = ['mmdet::_base_/models/mask-rcnn_r50_fpn.py', '../_base_/finetune/coco-format.py']
model = dict(
    backbone=dict(_delete_=True, type='inline.InLineSwin', arch='tiny', drop_path_rate=0.2),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
train_pipeline = _base_.train_pipeline
train_pipeline[1].with_mask = True
test_pipeline = _base_.test_pipeline
test_pipeline[2].with_mask = True
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric=['bbox', 'segm'])
test_evaluator = val_evaluator
