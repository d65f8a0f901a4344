# InLine-PVT-micro on Tiny-ImageNet, 16 × 16 tokens in the first stage. It has learned positions, unlike the
# configs in configs/tiny_imagenet/: rows without a local term would have no position information.
_base_ = ['../tiny_imagenet/classification.py', '../digits/backbone.py']
model = dict(
    backbone={
        **_base_.backbone,
        'img_size': 64,
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
