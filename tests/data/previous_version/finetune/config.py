_dataset = dict(
    data_root='data/digit_scenes/classification',
    type='CustomDataset',
    with_label=True)
auto_scale_lr = dict(base_batch_size=64)
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
    dict(folder='finetune/bad_data', notes=[], type='inline.BadDataHook'),
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
        interval=1,
        max_keep_ckpts=1,
        save_best='auto',
        type='inline.WholeCheckpointHook'),
    logger=dict(_scope_='mmpretrain', interval=20, type='LoggerHook'),
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
model = dict(
    backbone=dict(
        absolute_position=False,
        arch=dict(
            depths=(
                1,
                2,
                2,
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
        img_size=48,
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
optim_wrapper = dict(
    clip_grad=dict(max_norm=5.0),
    constructor='inline.LayerDecayConstructor',
    optimizer=dict(lr=0.002, type='AdamW', weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=0.8),
    type='OptimWrapper')
own_data = 'image-folder'
param_scheduler = [
    dict(
        by_epoch=True,
        convert_to_iter_based=True,
        end=2,
        start_factor=0.01,
        type='LinearLR'),
    dict(
        by_epoch=True,
        convert_to_iter_based=True,
        eta_min_ratio=0.01,
        type='CosineAnnealingLR'),
]
randomness = dict(deterministic=False, seed=0)
resume = False
test_cfg = dict()
test_dataloader = dict(
    batch_size=64,
    dataset=dict(
        classes=[
            '0',
            '1',
            '2',
            '3',
            '4',
            '5',
            '6',
            '7',
            '8',
            '9',
        ],
        data_prefix='val',
        data_root='data/digit_scenes/classification',
        extensions=[
            '.jpg',
            '.jpeg',
            '.png',
            '.bmp',
            '.webp',
            '.tif',
            '.tiff',
            '.ppm',
            '.pgm',
        ],
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(
                backend='pillow',
                edge='short',
                interpolation='bicubic',
                scale=48,
                type='ResizeEdge'),
            dict(crop_size=48, type='CenterCrop'),
            dict(type='PackInputs'),
        ],
        type='CustomDataset',
        with_label=True),
    num_workers=2,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
test_evaluator = dict(topk=(1, ), type='Accuracy')
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        backend='pillow',
        edge='short',
        interpolation='bicubic',
        scale=48,
        type='ResizeEdge'),
    dict(crop_size=48, type='CenterCrop'),
    dict(type='PackInputs'),
]
train_cfg = dict(max_epochs=2, type='inline.ExactEpochLoop', val_interval=1)
train_dataloader = dict(
    batch_size=64,
    dataset=dict(
        dataset=dict(
            classes=[
                '0',
                '1',
                '2',
                '3',
                '4',
                '5',
                '6',
                '7',
                '8',
                '9',
            ],
            data_prefix='train',
            data_root='data/digit_scenes/classification',
            extensions=[
                '.jpg',
                '.jpeg',
                '.png',
                '.bmp',
                '.webp',
                '.tif',
                '.tiff',
                '.ppm',
                '.pgm',
            ],
            pipeline=[
                dict(max_pixels=100000000, type='inline.LoadImage'),
                dict(
                    backend='pillow',
                    crop_ratio_range=(
                        0.5,
                        1.0,
                    ),
                    interpolation='bicubic',
                    scale=48,
                    type='RandomResizedCrop'),
                dict(direction='horizontal', prob=0.5, type='RandomFlip'),
                dict(
                    backend='cv2',
                    brightness=0.2,
                    contrast=0.2,
                    saturation=0.2,
                    type='ColorJitter'),
                dict(type='PackInputs'),
            ],
            type='CustomDataset',
            with_label=True),
        skipping=dict(
            folder='finetune/bad_data', limit=0.01, name='dataset_0'),
        type='InLineCheckedDataset'),
    num_workers=2,
    persistent_workers=True,
    sampler=dict(shuffle=True, type='DefaultSampler'))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        backend='pillow',
        crop_ratio_range=(
            0.5,
            1.0,
        ),
        interpolation='bicubic',
        scale=48,
        type='RandomResizedCrop'),
    dict(direction='horizontal', prob=0.5, type='RandomFlip'),
    dict(
        backend='cv2',
        brightness=0.2,
        contrast=0.2,
        saturation=0.2,
        type='ColorJitter'),
    dict(type='PackInputs'),
]
val_cfg = dict()
val_dataloader = dict(
    batch_size=64,
    dataset=dict(
        dataset=dict(
            classes=[
                '0',
                '1',
                '2',
                '3',
                '4',
                '5',
                '6',
                '7',
                '8',
                '9',
            ],
            data_prefix='val',
            data_root='data/digit_scenes/classification',
            extensions=[
                '.jpg',
                '.jpeg',
                '.png',
                '.bmp',
                '.webp',
                '.tif',
                '.tiff',
                '.ppm',
                '.pgm',
            ],
            pipeline=[
                dict(max_pixels=100000000, type='inline.LoadImage'),
                dict(
                    backend='pillow',
                    edge='short',
                    interpolation='bicubic',
                    scale=48,
                    type='ResizeEdge'),
                dict(crop_size=48, type='CenterCrop'),
                dict(type='PackInputs'),
            ],
            type='CustomDataset',
            with_label=True),
        type='InLineCheckedDataset'),
    num_workers=2,
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
work_dir = 'finetune'
