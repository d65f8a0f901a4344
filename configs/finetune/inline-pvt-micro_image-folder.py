# Small enough for a laptop: the micro backbone, images of 48 pixels.
_base_ = ['../_base_/finetune/image-folder.py', '../_base_/finetune/micro.py']
model = dict(backbone=dict(**_base_.backbone, out_indices=(3,)), head=dict(in_channels=192))
train_pipeline = _base_.train_pipeline
train_pipeline[1].scale = 48
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = 48
test_pipeline[2].crop_size = 48
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=2e-3))
