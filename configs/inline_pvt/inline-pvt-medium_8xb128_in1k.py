_base_ = 'inline-pvt-tiny_8xb128_in1k.py'
model = dict(backbone=dict(arch='medium', drop_path_rate=0.3))
optim_wrapper = dict(clip_grad=dict(_delete_=True, max_norm=1.0))
