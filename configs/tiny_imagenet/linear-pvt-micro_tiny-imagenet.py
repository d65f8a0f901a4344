_base_ = 'inline-pvt-micro_tiny-imagenet.py'
model = dict(backbone=dict(mixers=dict(type='Linear', kernel='relu')))
