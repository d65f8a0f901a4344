_base_ = '../../../_base_/ablations/pvt_tiny_imagenet_6e.py'
model = dict(backbone=dict(mixers=dict(type='MALA')))
