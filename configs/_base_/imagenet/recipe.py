# The authors' recipe: AdamW, 300 epochs, 20 warm-up epochs, then a cosine. The learning rate is 5e-4 per 512
# images; each config sets its own for its batch size, and the warm-up and minimum rates are relative to it.
_base_ = '../runtime/mmpretrain.py'
model = dict(
    type='ImageClassifier',
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02, bias=0.0),
    ),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]),
)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, eps=1e-8, betas=(0.9, 0.999)),
    clip_grad=dict(max_norm=5.0),
    # No weight decay on biases, norms and position embeddings.
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        flat_decay_mult=0.0,
        custom_keys=dict(position=dict(decay_mult=0.0), class_token=dict(decay_mult=0.0)),
    ),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=20, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min_ratio=1e-2, by_epoch=True, begin=20, end=300),
]
train_cfg = dict(type='inline.ResumableEpochTrainLoop', max_epochs=300, val_interval=1)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3, save_best='auto'))
auto_scale_lr = dict(base_batch_size=1024)
