# Fine-tuned from the weights trained at 224 pixels. Test images are not cropped.
_base_ = ['../_base_/imagenet/data_384.py', '../_base_/imagenet/recipe.py']
model = dict(
    backbone=dict(type='inline.InLineSwin', arch='base', img_size=384, out_indices=(3,), drop_path_rate=0.5),
    head=dict(in_channels=1024),
)
train_dataloader = dict(batch_size=64)
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (384, 384)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=2e-5, weight_decay=1e-8))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min_ratio=1e-2, by_epoch=True, begin=5, end=30),
]
train_cfg = dict(max_epochs=30)
auto_scale_lr = dict(base_batch_size=512)
load_from = 'checkpoints/inline-swin-base.pth'
