_base_ = ['../_base_/imagenet/data_224.py', '../_base_/imagenet/recipe_timm.py']
model = dict(
    backbone=dict(type='inline.InLineCSwin', arch='tiny', out_indices=(3,), drop_path_rate=0.2),
    head=dict(in_channels=512),
)
# The authors' 0.9996 for 4096 images; a smaller batch forgets less at each step.
custom_hooks = [dict(type='EMAHook', momentum=1 - 0.9996 ** (1024 / 4096), priority='ABOVE_NORMAL')]
