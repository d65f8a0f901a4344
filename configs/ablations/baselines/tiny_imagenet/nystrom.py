# The default of 64 landmarks would be full attention on all maps except the first.
_base_ = '../../../_base_/ablations/pvt_tiny_imagenet_6e.py'
model = dict(backbone=dict(mixers=dict(type='Nystrom', num_landmarks=16)))
