# The widths of the Swin config.
_base_ = 'inline-swin-micro_tiny-imagenet.py'
model = dict(
    backbone=dict(type='inline.InLineCSwin', arch=dict(depths=(1, 2, 2, 1), inline_depths=(1, 2, 0, 0)))
)
