# Scenes of one to six digits, 88×88, with COCO boxes and masks.
_base_ = ['../runtime/mmdet.py', 'backbone.py', 'optimizer.py']
_dataset = dict(
    type='CocoDataset',
    data_root='data/digit_scenes',
    metainfo=dict(classes=tuple('0123456789')),
)
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        **_dataset,
        ann_file='instances_train.json',
        data_prefix=dict(img='images/training'),
        filter_cfg=dict(filter_empty_gt=True, min_size=1),
        pipeline=[
            dict(type='inline.LoadImage'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='PhotoMetricDistortion'),
            dict(type='Resize', scale=(88, 88), keep_ratio=True),
            dict(type='PackDetInputs'),
        ],
    ),
)
val_dataloader = dict(
    batch_size=10,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **_dataset,
        ann_file='instances_val.json',
        data_prefix=dict(img='images/validation'),
        test_mode=True,
        pipeline=[
            dict(type='inline.LoadImage'),
            dict(type='Resize', scale=(88, 88), keep_ratio=True),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(
                type='PackDetInputs',
                meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
            ),
        ],
    ),
)
val_evaluator = dict(
    type='CocoMetric', ann_file='data/digit_scenes/instances_val.json', metric=['bbox', 'segm']
)
test_dataloader = val_dataloader
test_evaluator = val_evaluator
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=20, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=200, max_keep_ckpts=1),
)
