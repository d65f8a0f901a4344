# Fine-tuned from the weights trained at 224 pixels.
_base_ = ['../_base_/imagenet/data_384.py', '../_base_/imagenet/recipe_timm.py']
model = dict(
    backbone=dict(type='inline.InLineCSwin', arch='base', img_size=384, out_indices=(3,), drop_path_rate=0.7),
    head=dict(in_channels=768),
)
train_dataloader = dict(batch_size=32)
optim_wrapper = dict(optimizer=dict(lr=5e-6, weight_decay=1e-8))
param_scheduler = [dict(type='CosineAnnealingLR', eta_min_ratio=2e-2, by_epoch=True, end=20)]
train_cfg = dict(max_epochs=20)
custom_hooks = [dict(type='EMAHook', momentum=1 - 0.9996 ** (256 / 4096), priority='ABOVE_NORMAL')]
auto_scale_lr = dict(base_batch_size=256)
load_from = 'checkpoints/inline-cswin-base.pth'
