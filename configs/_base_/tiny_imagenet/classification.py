# Tiny-ImageNet: 100,000 training and 10,000 validation photographs of 64×64 pixels, 200 classes. The paper's
# recipe scaled down to a network of about one million parameters: it underfits, so the augmentation is light.
_base_ = '../runtime/mmpretrain.py'
data_preprocessor = dict(
    num_classes=200, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True
)
_dataset = dict(type='inline.TinyImageNet', data_root='data/tiny-imagenet-200')
train_dataloader = dict(
    batch_size=128,
    num_workers=1,
    persistent_workers=True,
    # One tensor per batch: sharing each image between processes costs more than decoding it.
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        **_dataset,
        split='train',
        pipeline=[
            dict(type='inline.LoadImage'),
            dict(type='RandomCrop', crop_size=64, padding=8, padding_mode='reflect'),
            dict(type='RandomFlip', prob=0.5, direction='horizontal'),
            dict(type='PackInputs'),
        ],
    ),
)
val_dataloader = dict(
    batch_size=200,
    num_workers=1,
    persistent_workers=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(**_dataset, split='val', pipeline=[dict(type='inline.LoadImage'), dict(type='PackInputs')]),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator
model = dict(
    type='ImageClassifier',
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=200,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
    ),
)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.05, fused=True),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=800),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=True, convert_to_iter_based=True),
]
train_cfg = dict(type='inline.ResumableEpochTrainLoop', max_epochs=30, val_interval=1)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=100), checkpoint=dict(max_keep_ckpts=1, save_best='auto')
)
randomness = dict(seed=0)
auto_scale_lr = dict(base_batch_size=128)
