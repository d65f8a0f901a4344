"""Weights in safetensors files, which can hold numbers and text and nothing else.

Read, such a file looks like a checkpoint: ``state_dict`` and ``meta``. The format keeps text beside the
tensors; there ``meta``, such as the config, the classes and the palette, stands as JSON. The
package safetensors is imported where it is needed: weights of other formats do without it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inline.errors import UserError
from inline.whole_files import whole_file

SUFFIX = '.safetensors'
META_KEY = 'meta'
# A file begins with the length of its header, eight bytes, and the header is JSON.
_LENGTH_BYTES = 8


def is_safetensors(file: Any) -> bool:
    """Whether a path or a file object is of this format, by its name or by how it begins."""
    if not isinstance(file, str | Path):
        begin = file.read(_LENGTH_BYTES + 1)
        file.seek(0)
        return bool(begin[_LENGTH_BYTES:] == b'{')
    if Path(file).suffix == SUFFIX:
        return True
    with Path(file).open('rb') as opened:
        return opened.read(_LENGTH_BYTES + 1)[_LENGTH_BYTES:] == b'{'


def read_safetensors(file: Any, map_location: Any = 'cpu') -> dict[str, Any]:
    """The file as a checkpoint of weights."""
    from safetensors import safe_open

    if isinstance(file, str | Path):
        with safe_open(file, framework='pt') as opened:
            names, text = opened.keys(), opened.metadata()
            tensors = {name: opened.get_tensor(name) for name in names}
    else:
        tensors, text = _read_bytes(file.read())
    if isinstance(map_location, str | torch.device):
        tensors = {name: tensor.to(map_location) for name, tensor in tensors.items()}
    meta = {key: _from_text(value) for key, value in (text or {}).items()}
    own = meta.pop(META_KEY, {})
    return {'meta': {**meta, **own} if isinstance(own, dict) else meta, 'state_dict': tensors}


def write_checkpoint(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Weights and ``meta`` to a file as a whole: to safetensors by the file's name, else as torch does it."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with whole_file(path) as part:
            if Path(path).suffix == SUFFIX:
                # One entry: the library writes several in any order, and a file's hash is its name.
                meta = {META_KEY: _to_text(checkpoint.get('meta', {}))}
                save_file(_apart(checkpoint['state_dict']), part, meta)
            else:
                torch.save(dict(checkpoint), part)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f'cannot write {str(path)!r}: {error}') from error


def _apart(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors that share no memory and have no gaps, as the format demands; tied ones are written twice."""
    taken: set[int] = set()
    apart = {}
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise UserError(
                f'{name} is of type {type(value).__name__}: a safetensors file holds tensors only'
            )
        tensor = value.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in taken else tensor
        taken.add(memory)
    return apart


def _read_bytes(content: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors.torch import load

    tensors = load(content)
    # The library checked the header when it read the tensors.
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], 'little')
    return tensors, json.loads(content[_LENGTH_BYTES:end]).get('__metadata__', {})


def _to_text(value: Any) -> str:
    return json.dumps(value, default=lambda other: other.tolist() if hasattr(other, 'tolist') else str(other))


def _from_text(text: str) -> Any:
    """JSON where it is, else the text itself: other programs write it plain."""
    try:
        return json.loads(text)
    except ValueError:
        return text
