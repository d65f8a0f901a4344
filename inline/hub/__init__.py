"""Backbones by name for plain PyTorch, and the Hugging Face Hub."""

from inline.hub.backbones import FeatureInfo, InLineBackbone, LinearHead, create_backbone, list_backbones

__all__ = ['FeatureInfo', 'InLineBackbone', 'LinearHead', 'create_backbone', 'list_backbones']
