"""Reading and writing safetensors files, which contain tensors and text only.

They are read as a checkpoint with ``state_dict`` and ``meta``. The format has a text field for metadata,
which holds ``meta`` (config, classes, palette, …) as JSON. The package safetensors is imported when it is
needed; other formats do not require it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inline.utils.atomic import atomic_file
from inline.utils.errors import UserError

SUFFIX = '.safetensors'
META_KEY = 'meta'
# A file starts with the length of its header (eight bytes), and the header is JSON.
_LENGTH_BYTES = 8


def is_safetensors(file: Any) -> bool:
    """Return whether a path or file object has this format, from its name or its first bytes."""
    if not isinstance(file, str | Path):
        start = file.read(_LENGTH_BYTES + 1)
        file.seek(0)
        return bool(start[_LENGTH_BYTES:] == b'{')
    if Path(file).suffix == SUFFIX:
        return True
    with Path(file).open('rb') as opened:
        return opened.read(_LENGTH_BYTES + 1)[_LENGTH_BYTES:] == b'{'


def read_safetensors(file: Any, map_location: Any = 'cpu') -> dict[str, Any]:
    """Return the file as a checkpoint: a dict with ``state_dict`` and ``meta``."""
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
    """Write weights and ``meta`` atomically: as safetensors if the suffix says so, else with torch.save."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with atomic_file(path) as temporary:
            if Path(path).suffix == SUFFIX:
                # One entry: the library writes several in arbitrary order, which would change the hash.
                meta = {META_KEY: _to_text(checkpoint.get('meta', {}))}
                save_file(_independent(checkpoint['state_dict']), temporary, meta)
            else:
                torch.save(dict(checkpoint), temporary)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f'cannot write {str(path)!r}: {error}') from error


def _independent(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return contiguous tensors that share no memory, as the format requires; tied ones are written twice."""
    seen: set[int] = set()
    independent = {}
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise UserError(f'{name} has type {type(value).__name__}: a safetensors file holds tensors only')
        tensor = value.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        independent[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return independent


def _read_bytes(content: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors.torch import load

    tensors = load(content)
    # The library has checked the header.
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], 'little')
    return tensors, json.loads(content[_LENGTH_BYTES:end]).get('__metadata__', {})


def _to_text(value: Any) -> str:
    return json.dumps(value, default=lambda other: other.tolist() if hasattr(other, 'tolist') else str(other))


def _from_text(text: str) -> Any:
    """Decode JSON; return other text, which other programs write, as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
