_base_ = ['inline-pvt-micro_tiny-imagenet.py', '../_base_/digits/nano.py']
model = dict(backbone=dict(arch=_base_.nano), head=dict(in_channels=96))
