"""Softmax models as they were published, where InLine's sizes differ: heads of 64 channels, not 32."""

from dataclasses import asdict, replace

from inline.models import InLineDeiT, InLinePVT
from inline.models.backbones import deit, pvt

SOFTMAX = {'type': 'Softmax'}
DEIT_TINY = replace(deit.ARCHS['tiny'], num_heads=3)
PVT_HEADS = (1, 2, 5, 8)


def softmax_deit_tiny(img_size: int | None = None) -> InLineDeiT:
    return InLineDeiT(asdict(DEIT_TINY), img_size=img_size, mixers=SOFTMAX)


def softmax_pvt(arch: str) -> InLinePVT:
    return InLinePVT(asdict(replace(pvt.ARCHS[arch], num_heads=PVT_HEADS)), mixers=SOFTMAX)
