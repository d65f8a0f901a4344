# InLine-PVT-micro on Tiny-ImageNet, 12 × 12 tokens in the first stage. It has learned positions, unlike the
# configs in configs/tiny_imagenet/: rows without a local term would have no position information. Photographs
# are reduced to 48 pixels, which takes half the time of 64.
_base_ = ['../tiny_imagenet/classification.py', '../digits/backbone.py']
train_dataloader = _base_.train_dataloader
train_dataloader.dataset.pipeline.insert(2, dict(type='Resize', scale=(48, 48)))
val_dataloader = _base_.val_dataloader
val_dataloader.dataset.pipeline.insert(1, dict(type='Resize', scale=(48, 48)))
test_dataloader = val_dataloader
model = dict(
    backbone={
        **_base_.backbone,
        'img_size': 48,
        'out_indices': (3,),
        'absolute_position': True,
        'init_cfg': [
            dict(type='Xavier', layer='Linear', distribution='uniform'),
            # As in pvt_digits.py: smaller positions have no effect next to the patch embeddings.
            dict(type='Normal', layer='PositionEmbedding', std=0.3),
        ],
    },
    head=dict(in_channels=192),
)
train_cfg = dict(max_epochs=10)
