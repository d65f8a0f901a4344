"""Adapters that make the PyTorch backbones available in OpenMMLab, and patches of its packages."""
