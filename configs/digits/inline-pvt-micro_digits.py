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
# A network this small stays at chance level for a long time unless beta2 is small and the warm-up is slow.
optim_wrapper = dict(optimizer=dict(betas=(0.9, 0.9)))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.2, by_epoch=False, end=300),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=False),
]
train_cfg = dict(type='inline.ResumableIterTrainLoop', max_iters=1000, val_interval=250)
