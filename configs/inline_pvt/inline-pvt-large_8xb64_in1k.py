_base_ = 'inline-pvt-tiny_8xb128_in1k.py'
model = dict(backbone=dict(arch='large', drop_path_rate=0.3))
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(_delete_=True, max_norm=1.0))
auto_scale_lr = dict(base_batch_size=512)
