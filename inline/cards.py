"""What a model card says of a model's attention: what its blocks have, not what the project is known for."""

from collections import Counter
from collections.abc import Mapping

from torch import nn

from inline.models.mixers import MIXERS, AttentionMixer, InLineMixer

PAPER = '[arXiv 2412.06590](https://arxiv.org/abs/2412.06590)'
_NAMES = {kind: name for name, kind in MIXERS.items()}


def count_attention(model: nn.Module) -> Counter[str]:
    """How many blocks of a model have which attention, in words."""
    return Counter(_describe(mixer) for mixer in model.modules() if isinstance(mixer, AttentionMixer))


def tell_attention(counts: Mapping[str, int]) -> str:
    """A sentence about what :func:`count_attention` found."""
    parts = [f'{words} in {number} block{"" if number == 1 else "s"}' for words, number in counts.items()]
    source = f' InLine is described in {PAPER}.' if any(map(_is_inline, counts)) else ''
    return f'Attention: {", ".join(parts)}.{source}'


def attention_tags(counts: Mapping[str, int]) -> list[str]:
    """Words to search for."""
    tags = ['linear-attention'] if any(words != 'Softmax' for words in counts) else []
    return [*tags, *(['inline'] if any(map(_is_inline, counts)) else [])]


def _describe(mixer: AttentionMixer) -> str:
    name = _NAMES.get(type(mixer), type(mixer).__name__)
    if not isinstance(mixer, InLineMixer):
        return name
    kind = 'injective linear attention' if mixer.injective else 'linear attention divided by its sum'
    return f'{name} ({kind}, {"with" if mixer.residual is not None else "without"} a local residual)'


def _is_inline(words: str) -> bool:
    return words.startswith('InLine ')
