# The second part of the training of the packaged weights. It starts from the result of the first part; the
# learning rate rises again, to half its first peak, and there is no stochastic depth: the model underfits.
# The compiled backbone computes in bfloat16, and decoded images are kept in memory: both save time.
_base_ = './inline-pvt-micro-distilled_tiny-imagenet.py'
load_from = 'work_dirs/inline-pvt-micro-distilled_tiny-imagenet/epoch_22.pth'
model = dict(student=dict(backbone=dict(drop_path_rate=0.0, autocast='bfloat16')))
train_dataloader = _base_.train_dataloader
train_dataloader.num_workers = 1
_pipeline = train_dataloader.dataset.pipeline
_pipeline[0] = dict(type='inline.CacheImages', transforms=[_pipeline[0]])
optim_wrapper = dict(optimizer=dict(lr=1e-3))
train_cfg = dict(max_epochs=20)
custom_hooks = [dict(type='inline.CompileBackboneHook')]
