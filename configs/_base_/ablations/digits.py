# Digits at 64 pixels, to compare attention mechanisms: everything that the tables share except the backbone.
# Training ends before convergence, where the mechanisms differ.
_base_ = '../digits/classification.py'
train_dataloader = _base_.train_dataloader
train_dataloader.dataset.pipeline[1].scale = 64
val_dataloader = _base_.val_dataloader
val_dataloader.dataset.pipeline[1].scale = (64, 64)
test_dataloader = val_dataloader
model = dict(
    type='ImageClassifier',
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1,),
    ),
)
optim_wrapper = dict(optimizer=dict(lr=3e-3, betas=(0.9, 0.95)))
train_cfg = dict(type='inline.ResumableIterTrainLoop', max_iters=800, val_interval=800)
default_hooks = dict(checkpoint=dict(interval=800))
