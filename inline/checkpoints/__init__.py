"""Reading and loading weights: the only package that opens a weight file.

:func:`read_checkpoint` reads a file, folder, URL or Hub name. :func:`load_partial_state_dict` loads weights
into a module and returns a :class:`LoadReport`. Everything else calls these two.
"""

from inline.checkpoints.reading import Checkpoint, as_checkpoint, read_checkpoint, read_file
from inline.checkpoints.softmax_models import CONVERTED_KEY, check_num_heads
from inline.checkpoints.sources import check_checkpoint
from inline.checkpoints.state_dict import (
    LoadReport,
    check_complete,
    compare_state_dict,
    load_complete_state_dict,
    load_partial_state_dict,
    select_submodule,
)
from inline.checkpoints.torch_format import trust_checkpoints
from inline.checkpoints.unpickling import load_pickle

__all__ = [
    'CONVERTED_KEY',
    'Checkpoint',
    'LoadReport',
    'as_checkpoint',
    'check_checkpoint',
    'check_complete',
    'check_num_heads',
    'compare_state_dict',
    'load_complete_state_dict',
    'load_partial_state_dict',
    'load_pickle',
    'read_checkpoint',
    'read_file',
    'select_submodule',
    'trust_checkpoints',
]
