_base_ = 'inline-pvt-micro_tiny-imagenet.py'
model = dict(backbone=dict(arch='nano'), head=dict(in_channels=96))
