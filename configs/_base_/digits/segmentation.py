# The same scenes with label maps as in ADE20K: 0 unlabelled, 1 background, 2 to 11 the digits.
_base_ = ['../runtime/mmseg.py', 'backbone.py', 'optimizer.py']
_dataset = dict(
    type='BaseSegDataset',
    data_root='data/digit_scenes',
    metainfo=dict(
        classes=('background', *'0123456789'),
        palette=[
            [40, 40, 40], [230, 25, 75], [60, 180, 75], [255, 225, 25], [67, 99, 216], [245, 130, 49],
            [145, 30, 180], [66, 212, 244], [240, 50, 230], [191, 239, 69], [0, 128, 128],
        ],
    ),
    reduce_zero_label=True,
)  # fmt: skip
train_dataloader = dict(
    batch_size=16,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        **_dataset,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=[
            dict(type='inline.LoadImage'),
            dict(type='inline.LoadLabelMap', num_classes=11, reduce_zero_label=True),
            dict(type='RandomResize', scale=(88, 88), ratio_range=(0.85, 1.1), keep_ratio=True),
            dict(type='RandomCrop', crop_size=(88, 88)),
            dict(type='PhotoMetricDistortion'),
            dict(type='PackSegInputs'),
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
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        pipeline=[
            dict(type='inline.LoadImage'),
            dict(type='inline.LoadLabelMap', num_classes=11, reduce_zero_label=True),
            dict(type='PackSegInputs'),
        ],
    ),
)
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_dataloader = val_dataloader
test_evaluator = val_evaluator
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=20, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=200, max_keep_ckpts=1),
)
# Four of five pixels are background: with equal weights the digits are learned slowly.
class_weight = [0.2] + [1.0] * 10
# The pretrained backbone has a tenth of the learning rate of the new layers.
optim_wrapper = dict(
    optimizer=dict(lr=4e-3, betas=(0.9, 0.98)),
    paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=0.1))),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.2, by_epoch=False, end=160),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=False),
]
