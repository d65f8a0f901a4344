_base_ = 'inline-cswin-base_8xb64_in1k.py'
model = dict(backbone=dict(mixers=dict(type='Softmax')))
