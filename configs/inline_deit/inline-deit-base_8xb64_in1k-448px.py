_base_ = ['../_base_/imagenet/data_448.py', '../_base_/imagenet/recipe.py']
model = dict(
    backbone=dict(type='inline.InLineDeiT', arch='base', out_type='cls_token', drop_path_rate=0.1),
    neck=None,
    head=dict(in_channels=384),
)
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=5e-4))
auto_scale_lr = dict(base_batch_size=512)
