_dataset = dict(
    data_root='data/digit_scenes/classification',
    type='CustomDataset',
    with_label=True)
backbone = dict(
    absolute_position=False,
    arch=dict(
        depths=(
            1,
            2,
            2,
            1,
        ),
        embed_dims=(
            32,
            64,
            128,
            192,
        ),
        mlp_ratios=(
            4,
            4,
            4,
            3,
        ),
        num_heads=(
            2,
            4,
            8,
            12,
        )),
    drop_path_rate=0.05,
    img_size=48,
    init_cfg=dict(distribution='uniform', layer='Linear', type='Xavier'),
    out_norm=True,
    type='inline.InLinePVT')
custom_hooks = [
    dict(momentum=0.1, type='EMAHook'),
    dict(
        folder='classification/bad_data', notes=[], type='inline.BadDataHook'),
]
data_preprocessor = dict(
    mean=[
        123.675,
        116.28,
        103.53,
    ],
    num_classes=10,
    std=[
        58.395,
        57.12,
        57.375,
    ],
    to_rgb=True)
default_hooks = dict(
    checkpoint=dict(
        _scope_='mmpretrain',
        by_epoch=False,
        interval=4,
        max_keep_ckpts=1,
        type='inline.WholeCheckpointHook'),
    logger=dict(
        _scope_='mmpretrain',
        interval=20,
        log_metric_by_epoch=False,
        type='LoggerHook'),
    param_scheduler=dict(_scope_='mmpretrain', type='ParamSchedulerHook'),
    sampler_seed=dict(_scope_='mmpretrain', type='DistSamplerSeedHook'),
    timer=dict(_scope_='mmpretrain', type='IterTimerHook'),
    visualization=dict(
        _scope_='mmpretrain', enable=False, type='VisualizationHook'))
default_scope = 'mmpretrain'
env_cfg = dict(
    cudnn_benchmark=False,
    dist_cfg=dict(backend='nccl'),
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
launcher = 'none'
load_from = None
log_level = 'INFO'
log_processor = dict(by_epoch=False)
model = dict(
    backbone=dict(
        absolute_position=False,
        arch=dict(
            depths=(
                1,
                1,
                1,
                1,
            ),
            embed_dims=(
                8,
                8,
                8,
                8,
            ),
            mlp_ratios=(
                1,
                1,
                1,
                1,
            ),
            num_heads=(
                2,
                2,
                2,
                2,
            )),
        drop_path_rate=0.05,
        img_size=32,
        init_cfg=dict(distribution='uniform', layer='Linear', type='Xavier'),
        out_indices=(3, ),
        out_norm=True,
        type='inline.InLinePVT'),
    head=dict(
        in_channels=8,
        loss=dict(
            label_smooth_val=0.1, mode='original', type='LabelSmoothLoss'),
        num_classes=10,
        topk=(1, ),
        type='LinearClsHead'),
    neck=dict(type='GlobalAveragePooling'),
    type='ImageClassifier')
nano = dict(
    depths=(
        1,
        1,
        1,
        1,
    ),
    embed_dims=(
        24,
        48,
        64,
        96,
    ),
    mlp_ratios=(
        3,
        3,
        3,
        3,
    ),
    num_heads=(
        2,
        4,
        4,
        6,
    ))
optim_wrapper = dict(
    clip_grad=dict(max_norm=1.0),
    optimizer=dict(
        betas=(
            0.9,
            0.9,
        ),
        fused=True,
        lr=0.002,
        type='AdamW',
        weight_decay=0.05),
    type='OptimWrapper')
param_scheduler = [
    dict(by_epoch=False, end=100, start_factor=0.2, type='LinearLR'),
    dict(by_epoch=False, eta_min_ratio=0.01, type='CosineAnnealingLR'),
]
randomness = dict(deterministic=False, seed=0)
resume = False
test_cfg = dict()
test_dataloader = dict(
    batch_size=100,
    dataset=dict(
        data_prefix='val',
        data_root='data/digit_scenes/classification',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(scale=(
                32,
                32,
            ), type='Resize'),
            dict(type='PackInputs'),
        ],
        type='CustomDataset',
        with_label=True),
    num_workers=1,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
test_evaluator = dict(topk=(1, ), type='Accuracy')
train_cfg = dict(max_iters=8, type='inline.ExactIterLoop', val_interval=4)
train_dataloader = dict(
    batch_size=8,
    dataset=dict(
        dataset=dict(
            data_prefix='train',
            data_root='data/digit_scenes/classification',
            pipeline=[
                dict(max_pixels=100000000, type='inline.LoadImage'),
                dict(
                    aspect_ratio_range=(
                        0.85,
                        1.18,
                    ),
                    crop_ratio_range=(
                        0.75,
                        1.0,
                    ),
                    scale=32,
                    type='RandomResizedCrop'),
                dict(type='PackInputs'),
            ],
            type='CustomDataset',
            with_label=True),
        skipping=dict(
            folder='classification/bad_data', limit=0.01, name='dataset_0'),
        type='InLineCheckedDataset'),
    num_workers=1,
    persistent_workers=True,
    sampler=dict(shuffle=True, type='InfiniteSampler'))
val_cfg = dict()
val_dataloader = dict(
    batch_size=100,
    dataset=dict(
        dataset=dict(
            data_prefix='val',
            data_root='data/digit_scenes/classification',
            pipeline=[
                dict(max_pixels=100000000, type='inline.LoadImage'),
                dict(scale=(
                    32,
                    32,
                ), type='Resize'),
                dict(type='PackInputs'),
            ],
            type='CustomDataset',
            with_label=True),
        type='InLineCheckedDataset'),
    num_workers=1,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
val_evaluator = dict(topk=(1, ), type='Accuracy')
vis_backends = [
    dict(type='LocalVisBackend'),
    dict(type='TensorboardVisBackend'),
]
visualizer = dict(
    _scope_='mmpretrain',
    type='UniversalVisualizer',
    vis_backends=[
        dict(type='LocalVisBackend'),
        dict(type='TensorboardVisBackend'),
    ])
work_dir = 'classification'
