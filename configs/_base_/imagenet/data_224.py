# The authors' ImageNet pipelines. Their colour jitter of 0.4 is left out: timm ignores it with RandAugment.
data_preprocessor = dict(
    num_classes=1000, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True
)
_bgr_mean, _bgr_std = data_preprocessor['mean'][::-1], data_preprocessor['std'][::-1]
train_pipeline = [
    dict(type='inline.LoadImage'),
    dict(type='RandomResizedCrop', scale=224, backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(
        type='RandAugment',
        policies='timm_increasing',
        num_policies=2,
        total_level=10,
        magnitude_level=9,
        magnitude_std=0.5,
        hparams=dict(pad_val=[round(value) for value in _bgr_mean], interpolation='bicubic'),
    ),
    dict(type='RandomErasing', erase_prob=0.25, mode='rand', fill_color=_bgr_mean, fill_std=_bgr_std),
    dict(type='PackInputs'),
]
# Resize to a square without keeping the aspect ratio, then crop the centre.
test_pipeline = [
    dict(type='inline.LoadImage'),
    dict(type='Resize', scale=(256, 256), backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='inline.ImageNet', data_root='data/imagenet', split='train', pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='inline.ImageNet', data_root='data/imagenet', split='val', pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator
