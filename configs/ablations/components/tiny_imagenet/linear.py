_base_ = '../../../_base_/ablations/pvt_tiny_imagenet_10e.py'
model = dict(backbone=dict(mixers=dict(type='Linear', kernel='relu')))
