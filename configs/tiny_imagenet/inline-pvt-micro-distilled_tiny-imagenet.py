# The recipe of the packaged weights: distillation from stored logits of an ImageNet
# classifier (tools/store_logits.py), images that grow from 40 to 64 pixels, a compiled backbone.
_base_ = './inline-pvt-micro_tiny-imagenet.py'
_student = _base_.model
model = dict(
    _delete_=True,
    type='inline.Distiller',
    student=_student,
    teacher=dict(type='inline.StoredLogits', file='data/tiny-imagenet-200_logits.npy'),
    losses=[dict(type='inline.LogitLoss', weight=0.8, temperature=2.0)],
    label_weight=0.2,
)
# 800 batches of the same shape per epoch: a different shape would recompile the backbone.
train_dataloader = dict(batch_size=125, num_workers=2)
train_cfg = dict(max_epochs=22, val_interval=2)
custom_hooks = [
    dict(type='inline.ProgressiveResizeHook', sizes=[(0, 40), (0.35, 48), (0.7, 64)]),
    dict(type='inline.CompileBackboneHook'),
]
