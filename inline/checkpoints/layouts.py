"""Parameter names of DeiT, ViT, PVT, Swin and CSwin in other projects.

A layout renames the tensors of one project to the names of the family's official repository. timm's ViT has
the names of DeiT; timm's Swin and the models of mmpretrain and mmdet have their own.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from inline.checkpoints.official import is_official

Replacement = str | Callable[[re.Match[str]], str]
# The backbone's name in models of OpenMMLab, and in detectors and segmentors of the official repositories.
PREFIX = 'backbone.'
TITLES = {'deit': 'DeiT or ViT', 'pvt': 'PVT', 'swin': 'Swin', 'cswin': 'CSwin'}


@dataclass(frozen=True)
class Layout:
    """The names of one family in one project.

    Args:
        family: deit, pvt, swin or cswin.
        project: Where the names come from, for messages.
        key: A tensor that every such model has and no other layout does.
        rules: Patterns and replacements, applied one after the other, that give the official names.
        merges_channels_first: Whether Swin's patch merging orders channels before positions.
        options: Arguments of our backbone in which the project's models differ from the official ones.
    """

    family: str
    project: str
    key: str
    rules: tuple[tuple[str, Replacement], ...] = ()
    merges_channels_first: bool = False
    options: tuple[tuple[str, float], ...] = ()

    @property
    def title(self) -> str:
        return f'{TITLES[self.family]} ({self.project})'

    def rename(self, name: str) -> str:
        """Return the official name of a tensor; a name without a rule is returned as it is."""
        for pattern, replacement in self.rules:
            name = re.sub(pattern, replacement, name)
        return name


def _stage(template: str) -> Callable[[re.Match[str]], str]:
    """Return a replacement with ``{0}`` for the first group plus 1, and ``{1}`` for the second minus 1."""

    def replace(match: re.Match[str]) -> str:
        stage, *rest = match.groups()
        return template.format(int(stage) + 1, *(int(number) - 1 for number in rest))

    return replace


_HEAD = (r'^head\.(?:layers\.head|fc)\.', 'head.')
_MM_EMBED = (r'^patch_embed\.projection\.', 'patch_embed.proj.')
_MM_MLP = ((r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'), (r'\.ffn\.layers\.1\.', '.mlp.fc2.'))

LAYOUTS = (
    Layout('deit', 'timm, official', 'blocks.0.attn.qkv.weight', (_HEAD,)),
    Layout(
        'deit',
        'mmpretrain',
        'layers.0.ffn.layers.0.0.weight',
        (
            _HEAD,
            _MM_EMBED,
            *_MM_MLP,
            (r'^layers\.(\d+)\.ln([12])\.', r'blocks.\1.norm\2.'),
            (r'^layers\.', 'blocks.'),
            (r'^ln1\.', 'norm.'),
        ),
    ),
    Layout(
        'swin', 'timm, official', 'layers.0.blocks.0.attn.relative_position_bias_table', (_HEAD,)
    ),
    Layout(
        'swin',
        'mmpretrain, mmdet',
        'stages.0.blocks.0.attn.w_msa.relative_position_bias_table',
        (_HEAD, _MM_EMBED, *_MM_MLP, (r'\.attn\.w_msa\.', '.attn.'), (r'^stages\.', 'layers.')),
        merges_channels_first=True,
    ),
    Layout('pvt', 'official', 'block1.0.attn.q.weight'),
    Layout(
        'pvt',
        'mmdet',
        'layers.0.1.1.attn.attn.in_proj_weight',
        (
            (r'^layers\.(\d)\.0\.projection\.', _stage('patch_embed{0}.proj.')),
            (r'^layers\.(\d)\.0\.', _stage('patch_embed{0}.')),
            (r'^layers\.(\d)\.1\.0\.pos_embed$', _stage('pos_embed{0}')),
            (r'^layers\.(\d)\.1\.([1-9]\d{0,3})\.', _stage('block{0}.{1}.')),
            (r'\.attn\.attn\.in_proj_', '.attn.qkv.'),
            (r'\.attn\.attn\.out_proj\.', '.attn.proj.'),
            (r'\.ffn\.layers\.0\.', '.mlp.fc1.'),
            (r'\.ffn\.layers\.3\.', '.mlp.fc2.'),
        ),
        options=(('norm_eps', 1e-6),),
    ),
    Layout('cswin', 'official', 'stage1_conv_embed.0.weight'),
)  # fmt: skip

# Related models that ours do not reproduce, by a tensor that only they have.
_UNSUPPORTED = (
    (r'dist_token', 'a distilled DeiT with a second class token'),
    (r'reg_token', 'a ViT with register tokens'),
    (r'fc_norm\..*', 'a ViT that classifies the mean of its tokens'),
    (r'.*\.(?:ls\d\.\w+|gamma_?\d(?:\.\w+)?)', 'a transformer with layer scale, such as DeiT III'),
    (r'.*\.attn\.(?:w_msa\.)?logit_scale', 'Swin V2'),
    (r'absolute_pos_embed', 'a Swin with absolute positions'),
    (r'.*\.mlp\.dwconv\..*|layers\.0\.1\.0\.attn\.attn\.in_proj_weight', 'PVT v2'),
)


def find_layout(names: Collection[str]) -> Layout | None:
    """Return the layout of the weights of a plain DeiT, PVT, Swin or CSwin; None for any others."""
    own = {name.removeprefix(PREFIX) for name in names}
    return next((layout for layout in LAYOUTS if layout.key in own), None)


def find_unsupported(names: Collection[str]) -> str | None:
    """Return the name of a related model that cannot be converted, with the tensor that identifies it."""
    for pattern, title in _UNSUPPORTED:
        for name in names:
            if re.fullmatch(pattern, name.removeprefix(PREFIX)):
                return f'{title} ({name})'
    return None


def conversion_hint(weights: Mapping[str, Tensor]) -> str:
    """Return how to convert weights of another project passed to one of our models; '' for our weights."""
    layout = None if is_official(weights) else find_layout(weights)
    if layout is None:
        return ''
    return (
        f'; the names are those of a {layout.title}: --pretrained and init_cfg accept the file, and '
        'tools/convert_checkpoint.py IN OUT converts it'
    )
