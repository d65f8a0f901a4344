"""What stands in for the Hugging Face Hub's mixin where its package is not installed."""

from typing import Any, NoReturn

from inline.errors import UserError


class PyTorchModelHubMixin:
    """Takes what the real one takes, and says what to install."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Without the settings of a model card."""

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> NoReturn:
        _refuse('from_pretrained')

    def save_pretrained(self, *_: Any, **__: Any) -> NoReturn:
        _refuse('save_pretrained')

    def push_to_hub(self, *_: Any, **__: Any) -> NoReturn:
        _refuse('push_to_hub')


def _refuse(name: str) -> NoReturn:
    raise UserError(f'{name} needs the package huggingface_hub: pip install huggingface_hub safetensors')
