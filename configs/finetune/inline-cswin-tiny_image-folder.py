_base_ = '../_base_/finetune/image-folder.py'
model = dict(
    backbone=dict(type='inline.InLineCSwin', arch='tiny', out_indices=(3,), drop_path_rate=0.2),
    head=dict(in_channels=512),
)
