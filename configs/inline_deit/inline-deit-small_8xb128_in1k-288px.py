_base_ = ['../_base_/imagenet/data_288.py', '../_base_/imagenet/recipe.py']
model = dict(
    backbone=dict(type='inline.InLineDeiT', arch='small', out_type='cls_token', drop_path_rate=0.1),
    neck=None,
    head=dict(in_channels=320),
)
