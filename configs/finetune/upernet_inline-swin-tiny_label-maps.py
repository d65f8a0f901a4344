_base_ = ['mmseg::_base_/models/upernet_r50.py', '../_base_/finetune/label-maps.py']
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    pretrained=None,
    backbone=dict(_delete_=True, type='inline.InLineSwin', arch='tiny', drop_path_rate=0.2),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
optim_wrapper = dict(optimizer=dict(lr=6e-5, weight_decay=0.01))
