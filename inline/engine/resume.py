"""Selection of the checkpoint that a run starts from: the newest one that is complete and undamaged.

A run has an id, which is drawn when it starts and kept when its launcher restarts it. The id is in the file
``started`` in the work directory and in every checkpoint, so that a restarted run finds its own checkpoints
even if the system clock was changed.
"""

import json
import os
import re
import uuid
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from mmengine.config import Config, ConfigDict
from mmengine.dist import all_gather_object, all_reduce, is_main_process

from inline.checkpoints import read_file
from inline.checkpoints.plain_data import RefusedError
from inline.checkpoints.safetensors_format import SUFFIX
from inline.checkpoints.torch_format import check_archive
from inline.engine.distributed.setup import call_on_rank_zero, join_process_group
from inline.engine.hooks.full_disk import FULL_DISK_ERRORS
from inline.engine.signals import RESTARTED_ENV
from inline.engine.training_state import check_progress
from inline.utils.arguments import format_value
from inline.utils.atomic import atomic_file
from inline.utils.errors import UserError, printable

# The checkpoint of a run that a signal stopped. Without a number in its name, the next one replaces it.
PREEMPTED_NAME = 'preempted.pth'
# File in the work directory with the id of the current run.
STARTED_NAME = 'started'
_MAX_PATH = 4096
# Key of a checkpoint's metadata.
RUN_ID = 'run_id'

Result = TypeVar('Result')


@dataclass(frozen=True)
class StartedRun:
    """The run that a work directory belongs to.

    Attributes:
        run_id: Its id; None if the run was started by an earlier version.
        time: Modification time of the file. Checkpoints without an id belong to the run if they are newer.
    """

    run_id: str | None
    time: float

    @classmethod
    def read(cls, work_dir: str | Path) -> 'StartedRun | None':
        """Read the file in the work directory; return None if there is none."""
        path = Path(work_dir, STARTED_NAME)
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text())
        except ValueError:
            content = None
        run_id = content.get(RUN_ID) if isinstance(content, dict) else None
        return cls(run_id if isinstance(run_id, str) else None, path.stat().st_mtime)

    @staticmethod
    def write(work_dir: str | Path) -> None:
        """Begin a new run in the work directory."""
        with atomic_file(Path(work_dir, STARTED_NAME)) as path:
            path.write_text(json.dumps({RUN_ID: uuid.uuid4().hex}))

    def owns(self, path: str, meta: dict[str, Any] | None) -> bool:
        """Return whether a checkpoint belongs to the run.

        Args:
            path: The checkpoint.
            meta: Its metadata, None if it cannot be read.
        """
        if meta is not None and RUN_ID in meta and self.run_id is not None:
            return bool(meta[RUN_ID] == self.run_id)
        return self.is_older_than(path)

    def is_older_than(self, path: str) -> bool:
        """Return whether the file was written after the start, according to the clock."""
        return os.path.isfile(path) and os.path.getmtime(path) >= self.time


def choose_start(cfg: Config, resume: str | None) -> str | None:
    """Choose the checkpoint that a run starts from, before the seed and the data order are drawn.

    A restarted run continues from the newest checkpoint that it has written itself. Checkpoints of an
    earlier run in the same folder are ignored: without its own checkpoint the run starts as on the command
    line.

    Args:
        cfg: Config of the run; its seed is set to that of the checkpoint.
        resume: Argument of ``--resume``, None without the flag.

    Returns:
        A path, or None to start from the beginning.
    """
    restarted = is_restarted_anywhere(cfg)

    def mark_start() -> StartedRun | None:
        started = StartedRun.read(cfg.work_dir) if restarted else None
        if started is None:
            StartedRun.write(cfg.work_dir)
        return started

    started = call_in_work_dir(mark_start, cfg)
    return choose_checkpoint(cfg, resume, started) if restarted or resume is not None else None


def is_restarted_anywhere(cfg: Config) -> bool:
    """Return whether a launcher has restarted this run on any rank."""
    join_process_group(cfg)
    restarted = torch.tensor(int(is_restart()))
    # A machine that rejoined does not know that the others were restarted.
    all_reduce(restarted, 'max')
    return bool(restarted)


def is_restart() -> bool:
    """Return whether torchrun, our agent or SLURM has restarted this run."""
    counts = (os.environ.get(name, '0') for name in ('TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT'))
    return RESTARTED_ENV in os.environ or any(int(count) > 0 for count in counts)


def choose_checkpoint(cfg: Config, resume: str | None, started: StartedRun | None = None) -> str | None:
    """Choose the checkpoint to resume from, the same on all ranks, and take over the seed of its run.

    Args:
        cfg: Config of the run. Its ``randomness.seed`` becomes the seed of the resumed run.
        resume: A path; 'auto' for the newest valid checkpoint in the work directory; or None.
        started: The run that was restarted. Its own checkpoints are preferred.

    Returns:
        The path, or None to start from the beginning.
    """

    def choose() -> tuple[str | None, int | None]:
        chosen = (None, None) if started is None else newest_valid(cfg, started)
        if chosen[0] is not None or resume is None:
            return chosen
        return newest_valid(cfg) if resume == 'auto' else (resume, _read_meta(resume).get('seed'))

    path, seed = call_in_work_dir(choose, cfg)
    if path is None:
        which = 'checkpoint' if started is None else 'checkpoint of this run'
        _print(f'resume: no {which} in {str(cfg.work_dir)!r}, training starts from the beginning')
        return None
    visible = all_gather_object('://' in path or Path(path).is_file())
    if not all(visible):
        raise UserError(
            f'checkpoint {path!r} does not exist on rank {visible.index(False)}: '
            'the work directory must be shared by all processes'
        )
    _print(f'resume: from {path}')
    if seed is not None:
        own = (cfg.get('randomness') or {}).get('seed')
        if own not in (None, seed):
            _print(f'resume: the run continues with its seed {seed} instead of {own}')
        cfg.randomness = ConfigDict(cfg.get('randomness') or {}, seed=seed)
    return path


def newest_valid(cfg: Config, started: StartedRun | None = None) -> tuple[str | None, int | None]:
    """Return the newest checkpoint that can be resumed, and its seed. Damaged ones are reported and skipped.

    Args:
        cfg: Config of the run.
        started: If given, only checkpoints of this run.
    """
    candidates = list(_candidates(cfg))
    if started is not None:
        # Checkpoints of the run are newer than its start, unless the clock was set back.
        candidates.sort(key=started.is_older_than, reverse=True)
    has_damaged = False
    for path in candidates:
        try:
            meta = _read_meta(path)
        except UserError as error:
            if started is None or started.owns(path, None):
                has_damaged = True
                _print(f'resume: skipped {path}: {str(error).removeprefix(f"checkpoint {path!r} ")}')
            continue
        if started is None or started.owns(path, meta):
            return path, meta.get('seed')
        if not started.is_older_than(path):
            # The newest file is of an earlier run, and so are the others. Reading all could take hours.
            break
    if has_damaged:
        raise UserError(
            f'no checkpoint in {str(cfg.work_dir)!r} can be resumed, see above: '
            'give another one with --resume CHECKPOINT, or start from the beginning without --resume'
        )
    return None, None


def check_resumable(path: str) -> None:
    """Raise a :class:`UserError` for a format that holds weights only."""
    if Path(path).suffix == SUFFIX:
        raise UserError(
            f'--resume {str(path)!r}: a safetensors file has weights but no training state; '
            'start from the weights with --cfg-options load_from=FILE, or resume from a .pth file'
        )


def read_state(path: str) -> dict[str, Any]:
    """Read a checkpoint; raise a :class:`UserError` if it is damaged or has no training state.

    Tensors of a zip file, the format of :func:`torch.save`, are on the meta device.
    """
    if not Path(path).is_file():
        raise UserError(f'checkpoint {path!r} does not exist')
    if Path(path).stat().st_size == 0:
        raise UserError(f'checkpoint {path!r} is empty (0 bytes)')
    # Verified tensors need not be loaded here: MMEngine loads them when the model exists.
    content = read_file(path, 'meta' if _verify_checksums(path) else 'cpu')
    meta = content.get('meta') if isinstance(content, dict) else None
    if (
        not isinstance(meta, dict)
        or not {'epoch', 'iter'} <= meta.keys()
        or not {'state_dict', 'message_hub'} <= content.keys()
    ):
        raise UserError(
            f'checkpoint {path!r} has no training state: only checkpoints saved during training can be '
            'resumed; --pretrained starts from weights'
        )
    check_progress(meta, path)
    if 'optimizer' not in content:
        raise UserError(
            f'checkpoint {path!r} has no optimizer state, like all best_….pth files: resume '
            'from an iter_….pth or epoch_….pth; --pretrained starts from weights'
        )
    return content


def call_in_work_dir(function: Callable[[], Result], cfg: Config) -> Result:
    """Call a function that accesses the work directory on rank 0; all ranks raise if it fails."""

    def call() -> Result:
        try:
            return function()
        except OSError as error:
            if error.errno in FULL_DISK_ERRORS:
                raise
            raise UserError(
                f'{str(error.filename or cfg.work_dir)!r} cannot be accessed: {error.strerror or error}'
            ) from error

    return call_on_rank_zero(call, cfg)


def _read_meta(path: str) -> dict[str, Any]:
    """Return the metadata of a checkpoint; empty for a URL, which MMEngine reads later."""
    return {} if '://' in path else read_state(path)['meta']


def _verify_checksums(path: str) -> bool:
    """Verify the checksums of a zip file, as torch does not verify all of them; False for other files."""
    with open(path, 'rb') as file:
        has_zip_header = file.read(4) == b'PK\x03\x04'
    try:
        if not zipfile.is_zipfile(path):
            if has_zip_header:
                raise UserError(f'checkpoint {path!r} is damaged: its end is missing')
            return False
        with zipfile.ZipFile(path) as archive:
            check_archive(archive, os.path.getsize(path))
            damaged = archive.testzip()
    except UserError:
        raise
    except RefusedError as error:
        raise UserError(f'checkpoint {path!r} cannot be loaded: {error}') from error
    except Exception as error:
        # Damaged bytes make zipfile and zlib raise errors of any type.
        raise UserError(f'checkpoint {path!r} is damaged: {str(error) or type(error).__name__}') from error
    if damaged is not None:
        raise UserError(f'checkpoint {path!r} is damaged: the checksum of {damaged!r} is wrong')
    return True


def _candidates(cfg: Config) -> Iterator[str]:
    """Yield the checkpoints of the run, the newest first.

    That is the one in ``last_checkpoint``, or a later one if the process was killed before it could write
    that file. Modification times alone are not enough: copying the folder may change them.
    """
    last = _read_last_checkpoint(cfg)
    saved = sorted(_saved_checkpoints(cfg), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    if last is None:
        yield from map(str, saved)
        return
    path = Path(last)
    if path.is_file():
        later = [other for other in saved if _is_later(other, path)]
        yield from map(str, sorted(later, key=_step_number, reverse=True))
        saved = [other for other in saved if other not in later and not other.samefile(path)]
    yield last
    yield from map(str, saved)


def _read_last_checkpoint(cfg: Config) -> str | None:
    file = Path(cfg.work_dir, 'last_checkpoint')
    if not file.is_file():
        return None
    named = file.read_bytes()[:_MAX_PATH].decode(errors='replace').strip()
    # The folder may have been moved or copied: a copy continues from its own files. Nothing outside of these
    # folders is read, and nothing is downloaded, regardless of the content of the file.
    name = os.path.basename(named)
    if '://' in named or name in ('.', '..') or not name.isprintable():
        raise UserError(
            f'{str(file)!r} names {format_value(named)}: must be a checkpoint in the work directory; '
            'delete the file to resume from the newest checkpoint there'
        )
    own = [folder / name for folder in _checkpoint_folders(cfg)] if name else []
    return next((str(path) for path in own if path.is_file()), str(own[-1]) if own else None)


def _saved_checkpoints(cfg: Config) -> Iterator[Path]:
    """Yield the checkpoints that can be resumed; the best ones have no optimizer state."""
    template = _checkpoint_hook(cfg).get('filename_tmpl') or 'epoch_{}.pth'
    templates = {PREEMPTED_NAME, 'epoch_{}.pth', 'iter_{}.pth', template}
    pattern = '|'.join(r'\d+'.join(map(re.escape, template.split('{}'))) for template in templates)
    for folder in _checkpoint_folders(cfg):
        for path in folder.iterdir() if folder.is_dir() else ():
            if re.fullmatch(pattern, path.name) and path.is_file():
                yield path


def _checkpoint_folders(cfg: Config) -> list[Path]:
    """Return the folder of the checkpoint hook and the work directory."""
    out_dir = _checkpoint_hook(cfg).get('out_dir')
    others = [Path(out_dir, Path(cfg.work_dir).name)] if out_dir else []
    return list(dict.fromkeys([*others, Path(cfg.work_dir)]))


def _checkpoint_hook(cfg: Config) -> dict[str, Any]:
    return (cfg.get('default_hooks') or {}).get('checkpoint') or {}


def _is_later(path: Path, other: Path) -> bool:
    same_template = re.sub(r'\d+', '', path.name) == re.sub(r'\d+', '', other.name)
    is_newer = path.stat().st_mtime_ns >= other.stat().st_mtime_ns
    return same_template and is_newer and _step_number(path) > _step_number(other)


def _step_number(path: Path) -> int:
    digits = re.findall(r'\d+', path.name)
    return int(digits[-1]) if digits else -1


def _print(line: str) -> None:
    if is_main_process():
        print(printable(line), flush=True)
