# Small enough for a laptop: the micro backbone, images within 320×240.
_base_ = [
    '../_base_/digits/retinanet.py',
    '../_base_/finetune/coco-format.py',
    '../_base_/finetune/micro.py',
]
# Levels and anchors as in RetinaNet for COCO.
model = dict(
    backbone=dict(_delete_=True, **_base_.backbone, out_indices=(1, 2, 3)),
    neck=dict(num_outs=5),
    bbox_head=dict(
        type='RetinaHead', anchor_generator=dict(octave_base_scale=4, strides=[8, 16, 32, 64, 128])
    ),
)
train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (320, 240)
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (320, 240)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=1e-3))
