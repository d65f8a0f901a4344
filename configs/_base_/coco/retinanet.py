_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    'mmdet::_base_/datasets/coco_detection.py',
    '../runtime/mmdet.py',
]
# Three levels from the backbone, two more from the neck.
model = dict(backbone=dict(_delete_=True, out_indices=(1, 2, 3)), neck=dict(start_level=0))
auto_scale_lr = dict(enable=False, base_batch_size=16)
