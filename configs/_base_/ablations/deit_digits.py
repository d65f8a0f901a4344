# A plain transformer with a class token on digits at 32 pixels: 64 patches of 4 × 4 pixels.
_base_ = 'digits.py'
train_dataloader = _base_.train_dataloader
train_dataloader.dataset.pipeline[1].scale = 32
val_dataloader = _base_.val_dataloader
val_dataloader.dataset.pipeline[1].scale = (32, 32)
test_dataloader = val_dataloader
model = dict(
    backbone=dict(
        type='inline.InLineDeiT',
        arch=dict(embed_dims=48, depth=4, num_heads=4, img_size=32, patch_size=4, mlp_ratio=2),
        out_type='cls_token',
        init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    ),
    head=dict(in_channels=48),
)
