_base_ = 'inline-deit-base_8xb64_in1k-448px.py'
model = dict(backbone=dict(mixers=dict(type='Softmax')))
