# The boxes of Tiny-ImageNet: one object of 200 classes in every image of 64×64 pixels.
_base_ = '../runtime/mmdet.py'
_dataset = dict(type='inline.TinyImageNetBoxes', data_root='data/tiny-imagenet-200')
train_dataloader = dict(
    batch_size=64,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        **_dataset,
        split='train',
        pipeline=[
            dict(type='inline.LoadImage'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackDetInputs'),
        ],
    ),
)
val_dataloader = dict(
    batch_size=100,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **_dataset,
        split='val',
        test_mode=True,
        pipeline=[
            dict(type='inline.LoadImage'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(
                type='PackDetInputs',
                meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'instances'),
            ),
        ],
    ),
)
test_dataloader = val_dataloader
# Without an annotation file the metric takes the boxes from the dataset.
val_evaluator = dict(type='CocoMetric', metric='bbox', ann_file=None)
test_evaluator = val_evaluator
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, fused=True),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=500),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=True, convert_to_iter_based=True),
]
train_cfg = dict(type='inline.ResumableEpochTrainLoop', max_epochs=6, val_interval=1)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=100), checkpoint=dict(max_keep_ckpts=1, save_best='auto')
)
randomness = dict(seed=0)
