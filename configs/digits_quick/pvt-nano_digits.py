_base_ = 'inline-pvt-nano_digits.py'
model = dict(backbone=dict(mixers=dict(type='Softmax')))
