_base_ = 'inline-cswin-tiny_8xb128_in1k.py'
model = dict(backbone=dict(mixers=dict(type='Softmax')))
