# Your own images and label maps, in any common pair of folders; layout and classes are read from the data.
# Pixels with label 255 are ignored.
_base_ = '../runtime/mmseg.py'
custom_data = 'label-maps'
crop_size = (512, 512)
train_pipeline = [
    dict(type='inline.LoadImage'),
    dict(type='inline.LoadLabelMap'),
    dict(type='RandomResize', scale=(2048, 512), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='inline.LoadImage'),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),
    dict(type='inline.LoadLabelMap'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='inline.ImagePairs', data_root='data', pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='inline.ImagePairs', data_root='data', pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-4, weight_decay=1e-4),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=100),
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False),
]
train_cfg = dict(type='inline.ResumableIterTrainLoop', max_iters=8000, val_interval=800)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(checkpoint=dict(interval=800, max_keep_ckpts=1, save_best='mIoU'))
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=4)
