_base_ = ['mmdet::_base_/models/retinanet_r50_fpn.py', '../_base_/finetune/coco-format.py']
model = dict(
    backbone=dict(
        _delete_=True, type='inline.InLinePVT', arch='tiny', out_indices=(1, 2, 3), drop_path_rate=0.1
    ),
    neck=dict(in_channels=[128, 320, 512], start_level=0),
)
