# The backbone of the digit scenes, at 64 pixels.
_base_ = ['../_base_/tiny_imagenet/classification.py', '../_base_/digits/backbone.py']
model = dict(backbone=dict(_base_.backbone, img_size=64, out_indices=(3,)), head=dict(in_channels=192))
