"""Backbones by name for plain PyTorch, and integration with timm, transformers and the Hugging Face Hub."""

from inline.hub.backbones import InLineBackbone, create_backbone, list_backbones
from inline.hub.features import FeatureInfo, LinearHead

__all__ = ['FeatureInfo', 'InLineBackbone', 'LinearHead', 'create_backbone', 'list_backbones']
