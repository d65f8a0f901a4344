_base_ = ['../_base_/imagenet/data_224.py', '../_base_/imagenet/recipe.py']
model = dict(
    backbone=dict(type='inline.InLineDeiT', arch='tiny', out_type='cls_token', drop_path_rate=0.1),
    neck=None,
    head=dict(in_channels=192),
)
train_dataloader = dict(batch_size=512)
optim_wrapper = dict(optimizer=dict(lr=4e-3))
auto_scale_lr = dict(base_batch_size=4096)
