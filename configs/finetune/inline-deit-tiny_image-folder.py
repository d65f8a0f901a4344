_base_ = '../_base_/finetune/image-folder.py'
model = dict(
    backbone=dict(type='inline.InLineDeiT', arch='tiny', out_type='cls_token', drop_path_rate=0.1),
    neck=None,
    head=dict(in_channels=192),
)
