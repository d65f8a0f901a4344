# Your own images in class folders or a CSV file; layout and classes are read from the data. A short recipe
# for pretrained weights: 30 epochs, a small learning rate with layer-wise decay.
_base_ = '../runtime/mmpretrain.py'
custom_data = 'image-folder'
data_preprocessor = dict(
    num_classes=1, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True
)
train_pipeline = [
    dict(type='inline.LoadImage'),
    dict(
        type='RandomResizedCrop',
        scale=224,
        crop_ratio_range=(0.5, 1.0),
        backend='pillow',
        interpolation='bicubic',
    ),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='ColorJitter', brightness=0.2, contrast=0.2, saturation=0.2, backend='cv2'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='inline.LoadImage'),
    dict(type='ResizeEdge', scale=256, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
_dataset = dict(type='CustomDataset', data_root='data', with_label=True)
train_dataloader = dict(
    batch_size=64,
    num_workers=2,
    persistent_workers=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(**_dataset, data_prefix='train', pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=64,
    num_workers=2,
    persistent_workers=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(**_dataset, data_prefix='val', pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator
model = dict(
    type='ImageClassifier',
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=1,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1,),
    ),
)
optim_wrapper = dict(
    type='OptimWrapper',
    constructor='inline.LayerDecayConstructor',
    optimizer=dict(type='AdamW', lr=5e-4, weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=0.8),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=True, convert_to_iter_based=True),
]
train_cfg = dict(type='inline.ResumableEpochTrainLoop', max_epochs=30, val_interval=1)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=20), checkpoint=dict(max_keep_ckpts=1, save_best='auto')
)
randomness = dict(seed=0)
auto_scale_lr = dict(base_batch_size=64)
