# Shorter side 480 to 800, or first a random crop of 384 to 600: DETR's augmentation, as for Swin 3x.
_scales = [(side, 1333) for side in range(480, 801, 32)]
multi_scale_pipeline = [
    dict(type='inline.LoadImage'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='RandomChoice',
        transforms=[
            [dict(type='RandomChoiceResize', scales=_scales, keep_ratio=True)],
            [
                dict(
                    type='RandomChoiceResize',
                    scales=[(400, 1333), (500, 1333), (600, 1333)],
                    keep_ratio=True,
                ),
                dict(
                    type='RandomCrop',
                    crop_type='absolute_range',
                    crop_size=(384, 600),
                    allow_negative_crop=True,
                ),
                dict(type='RandomChoiceResize', scales=_scales, keep_ratio=True),
            ],
        ],
    ),
    dict(type='PackDetInputs'),
]
