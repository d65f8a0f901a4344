_base_ = 'inline-swin-base_8xb64_in1k.py'
model = dict(backbone=dict(mixers=dict(type='Softmax')))
