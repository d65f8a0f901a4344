# The widths of the Swin config.
_base_ = 'inline-swin-micro_tiny-imagenet.py'
model = dict(backbone=dict(type='inline.InLineCSwin'))
