# InLine-PVT-micro on Tiny-ImageNet, 8 × 8 tokens in the first stage. It has learned positions, unlike the
# configs in configs/tiny_imagenet/: rows without a local term would have no position information. Photographs
# are reduced to 32 pixels, which takes a quarter of the time of 64.
_base_ = ['../tiny_imagenet/classification.py', '../digits/backbone.py']
train_dataloader = _base_.train_dataloader
_resize = dict(type='Resize', scale=(32, 32), interpolation='area')
train_dataloader.dataset.pipeline[:2] = [
    dict(type='inline.CacheImages', transforms=[dict(type='inline.LoadImage'), _resize]),
    dict(type='RandomCrop', crop_size=32, padding=4, padding_mode='reflect'),
]
val_dataloader = _base_.val_dataloader
val_dataloader.dataset.pipeline.insert(1, _resize)
test_dataloader = val_dataloader
model = dict(
    backbone={
        **_base_.backbone,
        'img_size': 32,
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
train_cfg = dict(max_epochs=10, val_interval=5)
