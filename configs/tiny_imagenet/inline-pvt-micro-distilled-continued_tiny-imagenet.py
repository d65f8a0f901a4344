# The second part of the training of the packaged weights. It starts from the result of the first part; the
# learning rate rises again, to half its first peak, and there is no stochastic depth: the model underfits.
_base_ = './inline-pvt-micro-distilled_tiny-imagenet.py'
load_from = 'work_dirs/inline-pvt-micro-distilled_tiny-imagenet/epoch_22.pth'
model = dict(student=dict(backbone=dict(drop_path_rate=0.0)))
optim_wrapper = dict(optimizer=dict(lr=1e-3))
train_cfg = dict(max_epochs=30)
custom_hooks = [
    dict(type='inline.ProgressiveResizeHook', sizes=[(0, 48), (0.4, 64)]),
    dict(type='inline.CompileBackboneHook'),
]
