# With the default of 64 landmarks, all maps would have exact softmax attention: the first has 64 tokens. With
# 16, the first is approximated; the others have at most 16 tokens and still get exact softmax attention.
_base_ = '../../../_base_/ablations/pvt_tiny_imagenet_6e.py'
model = dict(backbone=dict(mixers=dict(type='Nystrom', num_landmarks=16)))
