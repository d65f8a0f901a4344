_base_ = ['../_base_/imagenet/data_224.py', '../_base_/imagenet/recipe_timm.py']
model = dict(
    backbone=dict(type='inline.InLineCSwin', arch='tiny', out_indices=(3,), drop_path_rate=0.2),
    head=dict(in_channels=512),
)
# The authors' decay of 0.9996 is for a batch size of 4096; a smaller batch has a larger decay per step.
custom_hooks = [dict(type='EMAHook', momentum=1 - 0.9996 ** (1024 / 4096), priority='ABOVE_NORMAL')]
