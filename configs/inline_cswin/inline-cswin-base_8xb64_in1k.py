_base_ = 'inline-cswin-tiny_8xb128_in1k.py'
model = dict(backbone=dict(arch='base', drop_path_rate=0.5), head=dict(in_channels=768))
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=5e-4, weight_decay=0.1))
custom_hooks = [dict(type='EMAHook', momentum=1 - 0.9996 ** (512 / 4096), priority='ABOVE_NORMAL')]
auto_scale_lr = dict(base_batch_size=512)
