_base_ = ['mmseg::_base_/models/fpn_r50.py', '../_base_/finetune/label-maps.py']
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    pretrained=None,
    backbone=dict(_delete_=True, type='inline.InLinePVT', arch='tiny', drop_path_rate=0.1),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
