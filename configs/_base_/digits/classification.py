# One digit per image, 48×48, in ImageNet's folder layout.
_base_ = ['../runtime/mmpretrain.py', 'backbone.py', 'optimizer.py']
data_preprocessor = dict(
    num_classes=10, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True
)
_dataset = dict(type='CustomDataset', data_root='data/digit_scenes/classification', with_label=True)
train_dataloader = dict(
    batch_size=48,
    num_workers=1,
    persistent_workers=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        **_dataset,
        data_prefix='train',
        pipeline=[
            dict(type='inline.LoadImage'),
            dict(
                type='RandomResizedCrop',
                scale=48,
                crop_ratio_range=(0.75, 1.0),
                aspect_ratio_range=(0.85, 1.18),
            ),
            dict(type='PackInputs'),
        ],
    ),
)
val_dataloader = dict(
    batch_size=100,
    num_workers=1,
    persistent_workers=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **_dataset,
        data_prefix='val',
        pipeline=[
            dict(type='inline.LoadImage'),
            dict(type='Resize', scale=(48, 48)),
            dict(type='PackInputs'),
        ],
    ),
)
val_evaluator = dict(type='Accuracy', topk=(1,))
test_dataloader = val_dataloader
test_evaluator = val_evaluator
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=20, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=200, max_keep_ckpts=1),
)
