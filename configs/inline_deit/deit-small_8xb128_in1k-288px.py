_base_ = 'inline-deit-small_8xb128_in1k-288px.py'
model = dict(backbone=dict(mixers=dict(type='Softmax')))
