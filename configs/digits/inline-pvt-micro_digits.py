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
# So small a network stays at chance level for long unless the optimizer's memory of squared gradients is
# short and the rate grows slowly.
optim_wrapper = dict(optimizer=dict(betas=(0.9, 0.9)))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.2, by_epoch=False, end=300),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, by_epoch=False),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=1000, val_interval=250)
