_base_ = ['../_base_/digits/retinanet.py', '../_base_/digits/detection.py']
model = dict(
    backbone=dict(_delete_=True, **_base_.backbone, out_indices=(1, 2, 3)),
    bbox_head=dict(num_classes=10),
)
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
train_cfg = dict(type='inline.ResumableIterTrainLoop', max_iters=160, val_interval=80)
