_base_ = ['mmseg::_base_/models/fpn_r50.py', '../_base_/digits/segmentation.py']
norm_cfg = dict(type='GN', num_groups=8)
model = dict(
    data_preprocessor=dict(size=(88, 88)),
    pretrained=None,
    backbone=dict(_delete_=True, **_base_.backbone),
    neck=dict(in_channels=[32, 64, 128, 192], out_channels=64, norm_cfg=norm_cfg),
    decode_head=dict(
        loss_decode=dict(type='inline.CrossEntropyLoss', class_weight=_base_.class_weight),
        in_channels=[64, 64, 64, 64],
        channels=64,
        num_classes=11,
        norm_cfg=norm_cfg,
        dropout_ratio=0.0,
    ),
)
train_cfg = dict(type='inline.ResumableIterTrainLoop', max_iters=800, val_interval=200)
