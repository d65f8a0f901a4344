_base_ = 'pvt_tiny_imagenet_10e.py'
train_cfg = dict(max_epochs=6, val_interval=3)
