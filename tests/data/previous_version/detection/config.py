_dataset = dict(
    data_root='data/digit_scenes',
    metainfo=dict(
        classes=(
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
        )),
    type='CocoDataset')
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
    dict(folder='detection/bad_data', notes=[], type='inline.BadDataHook'),
]
default_hooks = dict(
    checkpoint=dict(
        _scope_='mmdet',
        by_epoch=False,
        interval=2,
        max_keep_ckpts=1,
        type='inline.WholeCheckpointHook'),
    logger=dict(
        _scope_='mmdet',
        interval=20,
        log_metric_by_epoch=False,
        type='LoggerHook'),
    param_scheduler=dict(_scope_='mmdet', type='ParamSchedulerHook'),
    sampler_seed=dict(_scope_='mmdet', type='DistSamplerSeedHook'),
    timer=dict(_scope_='mmdet', type='IterTimerHook'),
    visualization=dict(_scope_='mmdet', type='DetVisualizationHook'))
default_scope = 'mmdet'
env_cfg = dict(
    cudnn_benchmark=False,
    dist_cfg=dict(backend='nccl'),
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
launcher = 'none'
load_from = None
log_level = 'INFO'
log_processor = dict(
    _scope_='mmdet', by_epoch=False, type='LogProcessor', window_size=50)
model = dict(
    _scope_='mmdet',
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
        img_size=48,
        init_cfg=dict(distribution='uniform', layer='Linear', type='Xavier'),
        out_indices=(
            1,
            2,
            3,
        ),
        out_norm=True,
        type='inline.InLinePVT'),
    bbox_head=dict(
        anchor_generator=dict(
            octave_base_scale=3,
            ratios=[
                0.5,
                1.0,
                2.0,
            ],
            scales_per_octave=3,
            strides=[
                8,
                16,
                32,
                64,
            ],
            type='AnchorGenerator'),
        bbox_coder=dict(
            target_means=[
                0.0,
                0.0,
                0.0,
                0.0,
            ],
            target_stds=[
                1.0,
                1.0,
                1.0,
                1.0,
            ],
            type='DeltaXYWHBBoxCoder'),
        feat_channels=8,
        in_channels=8,
        loss_bbox=dict(loss_weight=1.0, type='L1Loss'),
        loss_cls=dict(
            alpha=0.25,
            gamma=2.0,
            loss_weight=1.0,
            type='FocalLoss',
            use_sigmoid=True),
        norm_cfg=dict(num_groups=4, type='GN'),
        num_classes=10,
        stacked_convs=2,
        type='inline.detection.RetinaHead'),
    data_preprocessor=dict(
        bgr_to_rgb=True,
        mean=[
            123.675,
            116.28,
            103.53,
        ],
        pad_size_divisor=32,
        std=[
            58.395,
            57.12,
            57.375,
        ],
        type='DetDataPreprocessor'),
    neck=dict(
        add_extra_convs='on_input',
        in_channels=[
            8,
            8,
            8,
        ],
        norm_cfg=dict(num_groups=4, type='GN'),
        num_outs=4,
        out_channels=8,
        start_level=0,
        type='FPN'),
    test_cfg=dict(
        max_per_img=100,
        min_bbox_size=0,
        nms=dict(iou_threshold=0.5, type='nms'),
        nms_pre=1000,
        score_thr=0.05),
    train_cfg=dict(
        allowed_border=-1,
        assigner=dict(
            ignore_iof_thr=-1,
            min_pos_iou=0,
            neg_iou_thr=0.4,
            pos_iou_thr=0.5,
            type='MaxIoUAssigner'),
        debug=False,
        pos_weight=-1,
        sampler=dict(type='PseudoSampler')),
    type='RetinaNet')
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
norm_cfg = dict(num_groups=8, type='GN')
optim_wrapper = dict(
    clip_grad=dict(max_norm=1.0),
    optimizer=dict(fused=True, lr=0.001, type='AdamW', weight_decay=0.05),
    type='OptimWrapper')
param_scheduler = [
    dict(by_epoch=False, end=100, start_factor=0.01, type='LinearLR'),
    dict(by_epoch=False, eta_min_ratio=0.01, type='CosineAnnealingLR'),
]
randomness = dict(seed=0)
resume = False
test_cfg = dict()
test_dataloader = dict(
    batch_size=10,
    dataset=dict(
        ann_file='instances_val.json',
        data_prefix=dict(img='images/validation'),
        data_root='data/digit_scenes',
        metainfo=dict(
            classes=(
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
            )),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(keep_ratio=True, scale=(
                88,
                88,
            ), type='Resize'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(
                meta_keys=(
                    'img_id',
                    'img_path',
                    'ori_shape',
                    'img_shape',
                    'scale_factor',
                ),
                type='PackDetInputs'),
        ],
        test_mode=True,
        type='CocoDataset'),
    num_workers=1,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
test_evaluator = dict(
    ann_file='data/digit_scenes/instances_val.json',
    metric='bbox',
    type='CocoMetric')
train_cfg = dict(max_iters=4, type='inline.ExactIterLoop', val_interval=4)
train_dataloader = dict(
    batch_size=8,
    dataset=dict(
        dataset=dict(
            ann_file='instances_train.json',
            data_prefix=dict(img='images/training'),
            data_root='data/digit_scenes',
            filter_cfg=dict(filter_empty_gt=True, min_size=1),
            metainfo=dict(
                classes=(
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
                )),
            pipeline=[
                dict(max_pixels=100000000, type='inline.LoadImage'),
                dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
                dict(type='PhotoMetricDistortion'),
                dict(keep_ratio=True, scale=(
                    88,
                    88,
                ), type='Resize'),
                dict(type='PackDetInputs'),
            ],
            type='CocoDataset'),
        skipping=dict(
            folder='detection/bad_data', limit=0.01, name='dataset_0'),
        type='InLineCheckedDataset'),
    num_workers=1,
    persistent_workers=True,
    sampler=dict(shuffle=True, type='InfiniteSampler'))
val_cfg = dict()
val_dataloader = dict(
    batch_size=10,
    dataset=dict(
        dataset=dict(
            ann_file='instances_val.json',
            data_prefix=dict(img='images/validation'),
            data_root='data/digit_scenes',
            metainfo=dict(
                classes=(
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
                )),
            pipeline=[
                dict(max_pixels=100000000, type='inline.LoadImage'),
                dict(keep_ratio=True, scale=(
                    88,
                    88,
                ), type='Resize'),
                dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
                dict(
                    meta_keys=(
                        'img_id',
                        'img_path',
                        'ori_shape',
                        'img_shape',
                        'scale_factor',
                    ),
                    type='PackDetInputs'),
            ],
            test_mode=True,
            type='CocoDataset'),
        type='InLineCheckedDataset'),
    num_workers=1,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
val_evaluator = dict(
    ann_file='data/digit_scenes/instances_val.json',
    metric='bbox',
    type='CocoMetric')
vis_backends = [
    dict(type='LocalVisBackend'),
    dict(type='TensorboardVisBackend'),
]
visualizer = dict(
    _scope_='mmdet',
    name='visualizer',
    type='DetLocalVisualizer',
    vis_backends=[
        dict(type='LocalVisBackend'),
        dict(type='TensorboardVisBackend'),
    ])
work_dir = 'detection'
