"""The attention layers of a model: their names, and what they work on while the model runs."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from inline.errors import UserError
from inline.models.mixers import AttentionMixer
from inline.models.mixers.base import Part


@dataclass(frozen=True)
class Layer:
    """An attention layer: a short key such as 1.2 or 7 for the command line, a name to read, its mixer."""

    key: str
    name: str
    mixer: AttentionMixer


def find_layers(model: nn.Module) -> list[Layer]:
    """All attention layers of a backbone, or of any model around it, from the input on."""
    found = [
        _name_layer(path, module)
        for path, module in model.named_modules()
        if isinstance(module, AttentionMixer)
    ]
    if not found:
        raise UserError(
            f'{type(model).__name__} has no attention layer of ours: its backbone must be one of ours'
        )
    return found


def choose_layers(layers: Sequence[Layer], keys: Sequence[str] | None) -> list[Layer]:
    """The layers of these keys, in the model's order; all if None."""
    if keys is None:
        return list(layers)
    known = [layer.key for layer in layers]
    for key in keys:
        if key not in known:
            raise UserError(f'layer {key!r} does not exist: choose of {", ".join(known)}')
    return [layer for layer in layers if layer.key in keys]


@contextmanager
def watch(layers: Sequence[Layer], see: Callable[[Layer, list[Part]], None]) -> Iterator[None]:
    """Call `see` with the parts of each layer whenever the model runs it."""

    def hook(layer: Layer) -> Callable[..., None]:
        def show(mixer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            assert isinstance(mixer, AttentionMixer)
            see(layer, list(mixer.parts(*args, **options)))

        return show

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.mixer.register_forward_pre_hook(hook(layer), with_kwargs=True))
        yield


def _name_layer(path: str, mixer: AttentionMixer) -> Layer:
    """From ``backbone.stages.0.blocks.1.mixer`` to «stage 1 block 2», of a DeiT to «block 2»."""
    staged = re.search(r'(?:^|\.)stages\.(\d+)\.blocks\.(\d+)\.mixer$', path)
    if staged:
        stage, block = int(staged[1]) + 1, int(staged[2]) + 1
        return Layer(f'{stage}.{block}', f'stage {stage} block {block}', mixer)
    plain = re.search(r'(?:^|\.)blocks\.(\d+)\.mixer$', path)
    if plain:
        return Layer(str(int(plain[1]) + 1), f'block {int(plain[1]) + 1}', mixer)
    return Layer(path, path, mixer)
