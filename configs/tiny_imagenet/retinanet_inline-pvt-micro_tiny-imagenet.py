_base_ = [
    '../_base_/digits/retinanet.py',
    '../_base_/tiny_imagenet/detection.py',
    '../_base_/digits/backbone.py',
]
model = dict(
    backbone=dict(_delete_=True, **_base_.backbone, out_indices=(1, 2, 3)),
    bbox_head=dict(num_classes=200),
)
