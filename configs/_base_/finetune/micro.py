# The micro backbone with the weights of Tiny-ImageNet that are part of the package. The first initializer is
# for `--pretrained none`.
_base_ = '../digits/backbone.py'
backbone = dict(
    init_cfg=[_base_.backbone.init_cfg, dict(type='Pretrained', checkpoint='inline_pvt_micro')],
)
