# The positional encoding has the size of the map, 8×8.
_base_ = '../../../_base_/ablations/pvt_tiny_imagenet_6e.py'
model = dict(backbone=dict(mixers=dict(type='PolaFormer', position_size=8)))
