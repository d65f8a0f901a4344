# The third part of the training of the packaged weights: once more from the result of the second, shorter and
# with a lower learning rate.
_base_ = './inline-pvt-micro-distilled-continued_tiny-imagenet.py'
load_from = 'work_dirs/inline-pvt-micro-distilled-continued_tiny-imagenet/epoch_20.pth'
optim_wrapper = dict(optimizer=dict(lr=7e-4))
train_cfg = dict(max_epochs=12)
