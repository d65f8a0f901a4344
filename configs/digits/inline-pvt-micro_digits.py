_base_ = '../_base_/digits/classification.py'
model = dict(
    type='ImageClassifier',
    backbone=dict(**_base_.backbone, out_indices=(3,)),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=192,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1,),
    ),
)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=2400, val_interval=400)
