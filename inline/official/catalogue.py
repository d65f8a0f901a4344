"""The fifteen released models, by name."""

from dataclasses import dataclass

from inline.errors import UserError
from inline.models import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin

Backbone = InLineDeiT | InLinePVT | InLineSwin | InLineCSwin
FAMILIES: dict[str, type[Backbone]] = {
    'deit': InLineDeiT,
    'pvt': InLinePVT,
    'swin': InLineSwin,
    'cswin': InLineCSwin,
}


@dataclass(frozen=True)
class OfficialModel:
    """A family, a size, and the resolution that it was trained at."""

    family: str
    arch: str
    img_size: int

    @property
    def name(self) -> str:
        """For example inline-swin-tiny; inline-swin-base-384 where there is one of 224 as well."""
        suffix = '-384' if self.img_size == 384 else ''
        return f'inline-{self.family}-{self.arch}{suffix}'

    @property
    def title(self) -> str:
        """As the paper's tables call it, for example InLine-Swin-T."""
        family = {'deit': 'DeiT', 'pvt': 'PVT', 'swin': 'Swin', 'cswin': 'CSwin'}[self.family]
        return f'InLine-{family}-{self.arch[0].upper()}'

    def build(self) -> Backbone:
        """The backbone as a classifier uses it."""
        if self.family == 'deit':
            return InLineDeiT(self.arch, out_type='cls_token')
        return FAMILIES[self.family](self.arch, img_size=self.img_size, out_indices=(3,))


OFFICIAL = {
    model.name: model
    for model in (
        OfficialModel('deit', 'tiny', 224),
        OfficialModel('deit', 'small', 288),
        OfficialModel('deit', 'base', 448),
        OfficialModel('pvt', 'tiny', 224),
        OfficialModel('pvt', 'small', 224),
        OfficialModel('pvt', 'medium', 224),
        OfficialModel('pvt', 'large', 224),
        OfficialModel('swin', 'tiny', 224),
        OfficialModel('swin', 'small', 224),
        OfficialModel('swin', 'base', 224),
        OfficialModel('swin', 'base', 384),
        OfficialModel('cswin', 'tiny', 224),
        OfficialModel('cswin', 'small', 224),
        OfficialModel('cswin', 'base', 224),
        OfficialModel('cswin', 'base', 384),
    )
}


def find_official(name: str) -> OfficialModel:
    if name not in OFFICIAL:
        raise UserError(
            f'{name!r} is neither a file nor a released model: choose one of {", ".join(OFFICIAL)}'
        )
    return OFFICIAL[name]
