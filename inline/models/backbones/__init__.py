from inline.models.backbones.pvt import InLinePVT

__all__ = ['InLinePVT']
