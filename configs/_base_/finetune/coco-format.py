# Your own boxes, or boxes and masks: COCO, VOC or YOLO. Layout, files and classes are read from the data.
_base_ = '../runtime/mmdet.py'
custom_data = 'coco-format'
train_pipeline = [
    dict(type='inline.LoadImage'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='inline.LoadImage'),
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
train_dataloader = dict(
    batch_size=2,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='AspectRatioBatchSampler'),
    dataset=dict(
        type='CocoDataset',
        data_root='data',
        # Images without objects are background.
        filter_cfg=dict(filter_empty_gt=False, min_size=1),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CocoDataset', data_root='data', test_mode=True, pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='CocoMetric', metric='bbox')
test_evaluator = val_evaluator
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=50),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=True, convert_to_iter_based=True),
]
train_cfg = dict(type='inline.ResumableEpochTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=10), checkpoint=dict(max_keep_ckpts=1, save_best='auto')
)
randomness = dict(seed=0)
auto_scale_lr = dict(base_batch_size=2)
