_base_ = ['../_base_/imagenet/data_224.py', '../_base_/imagenet/recipe_timm.py']
model = dict(
    backbone=dict(type='inline.InLinePVT', arch='tiny', out_indices=(3,), drop_path_rate=0.1),
    head=dict(in_channels=512),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=2e-3, by_epoch=True, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min_ratio=2e-2, by_epoch=True, begin=5, end=300),
]
