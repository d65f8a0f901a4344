_base_ = 'inline-swin-tiny_8xb128_in1k.py'
model = dict(backbone=dict(arch='base', drop_path_rate=0.5), head=dict(in_channels=1024))
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=5e-4))
auto_scale_lr = dict(base_batch_size=512)
