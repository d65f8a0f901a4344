_base_ = '../_base_/finetune/image-folder.py'
model = dict(
    backbone=dict(type='inline.InLinePVT', arch='tiny', out_indices=(3,), drop_path_rate=0.1),
    head=dict(in_channels=512),
)
