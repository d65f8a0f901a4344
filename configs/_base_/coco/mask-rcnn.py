_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    'mmdet::_base_/datasets/coco_instance.py',
    '../runtime/mmdet.py',
]
# Remove all arguments of ResNet; each config sets its backbone.
model = dict(backbone=dict(_delete_=True))
auto_scale_lr = dict(enable=False, base_batch_size=16)
