"""Resuming: which checkpoint is the newest good one, and a config that saves and resumes exactly."""

import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.dist import all_gather_object, broadcast_object_list, init_dist, is_distributed, is_main_process

from inline import whole_files
from inline.engine.safe_loading import load
from inline.errors import UserError

LOOPS = {'EpochBasedTrainLoop': 'inline.ExactEpochLoop', 'IterBasedTrainLoop': 'inline.ExactIterLoop'}
HOOK = 'inline.WholeCheckpointHook'
# What a signal makes a run save. One name, so that a run that is stopped a hundred times keeps one such file.
PREEMPTED_NAME = 'preempted.pth'


def make_resumable(cfg: Config) -> None:
    """Let a training save its checkpoints whole and, resumed, do what it would have done uninterrupted.

    MMEngine's own loops and checkpoint hooks are replaced by those of this package; others stay.
    """
    whole_files.install()
    train_cfg = cfg.get('train_cfg')
    if train_cfg is not None:
        if 'by_epoch' in train_cfg:
            by_epoch = train_cfg.pop('by_epoch')
            train_cfg['type'] = 'EpochBasedTrainLoop' if by_epoch else 'IterBasedTrainLoop'
        train_cfg['type'] = LOOPS.get(_name(train_cfg.get('type')), train_cfg.get('type'))
    hooks = cfg.setdefault('default_hooks', ConfigDict())
    hooks.setdefault('checkpoint', ConfigDict(type='CheckpointHook', interval=1))
    for hook in (hooks.checkpoint, *(cfg.get('custom_hooks') or ())):
        if isinstance(hook, dict) and _name(hook.get('type')) == 'CheckpointHook':
            hook['type'] = HOOK


def meet(cfg: Config) -> None:
    """Let the processes of a run know each other, if they do not yet."""
    if cfg.launcher != 'none' and not is_distributed():
        init_dist(cfg.launcher, **(cfg.get('env_cfg') or {}).get('dist_cfg', {}))


def choose_checkpoint(cfg: Config, resume: str | None, since: float | None = None) -> None:
    """Set what the run resumes: the file `resume`, or for ``auto`` the newest good one, if there is any.

    Before that comes the newest good one that was written `since` a time, as :func:`os.path.getmtime` gives
    it. All processes take what the first one chose. An unseeded run goes on with the seed that it had.
    """
    meet(cfg)
    chosen: list[Any] = [None, None, None]
    if is_main_process():
        try:
            if since is not None:
                chosen[:2] = newest_good(cfg, since)
            if chosen[0] is None and resume is not None:
                chosen[:2] = newest_good(cfg) if resume == 'auto' else (resume, _seed(resume))
        except UserError as error:
            chosen[2] = str(error)
    broadcast_object_list(chosen)
    path, seed, refusal = chosen
    if refusal is not None:
        raise UserError(refusal)
    cfg.resume = path is not None
    if path is None:
        which = 'checkpoint' if since is None else 'checkpoint of this run'
        _say(f'resume: no {which} in {str(cfg.work_dir)!r}, training starts from the beginning')
        return
    seen = all_gather_object('://' in path or Path(path).is_file())
    if not all(seen):
        raise UserError(
            f'checkpoint {path!r} is not there for process {seen.index(False)}: '
            'the work directory must be one that all processes share'
        )
    _say(f'resume: from {path}')
    cfg.load_from = path
    if seed is not None:
        own = (cfg.get('randomness') or {}).get('seed')
        if own not in (None, seed):
            _say(f'resume: the run goes on with its seed {seed}, not with {own}')
        cfg.randomness = ConfigDict(cfg.get('randomness') or {}, seed=seed)


def newest_good(cfg: Config, since: float | None = None) -> tuple[str | None, int | None]:
    """The newest checkpoint that can be resumed, and its seed; damaged ones are told and skipped.

    With `since`, of those only that were written at that time or later.
    """
    candidates = [path for path in _candidates(cfg) if since is None or _written_since(path, since)]
    for path in candidates:
        try:
            return path, _seed(path)
        except UserError as error:
            _say(f'resume: skipped {path}: {str(error).removeprefix(f"checkpoint {path!r} ")}')
    if candidates:
        raise UserError(
            f'no checkpoint in {str(cfg.work_dir)!r} can be resumed, see above: '
            'give another with --resume CHECKPOINT, or start anew without --resume'
        )
    return None, None


def read_state(path: str) -> dict[str, Any]:
    """The content of a checkpoint that training saved; any other file, or a damaged one, is refused."""
    if not Path(path).is_file():
        raise UserError(f'checkpoint {path!r} does not exist')
    if Path(path).stat().st_size == 0:
        raise UserError(f'checkpoint {path!r} is empty (0 bytes)')
    _check_sums(path)
    content = load(path)
    meta = content.get('meta') if isinstance(content, dict) else None
    if (
        not isinstance(meta, dict)
        or not {'epoch', 'iter'} <= meta.keys()
        or not {'state_dict', 'message_hub'} <= content.keys()
    ):
        raise UserError(
            f'checkpoint {path!r} holds no state of a training: only what a training saved can be resumed; '
            '--pretrained starts from weights'
        )
    if 'optimizer' not in content:
        raise UserError(
            f'checkpoint {path!r} holds no state of the optimizer, as a best_….pth: resume from an '
            'iter_….pth or epoch_….pth; --pretrained starts from weights'
        )
    return content


def _seed(path: str) -> int | None:
    """The seed of the run that saved a checkpoint; what is not on this machine is left to MMEngine."""
    return None if '://' in path else read_state(path)['meta'].get('seed')


def _check_sums(path: str) -> None:
    """Compare the check sums in the file, which torch does not look at for all of it."""
    with open(path, 'rb') as start:
        begins_as_zip = start.read(4) == b'PK\x03\x04'
    try:
        if not zipfile.is_zipfile(path):
            if begins_as_zip:
                raise UserError(f'checkpoint {path!r} is damaged: its end is missing')
            return
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip()
    except UserError:
        raise
    except Exception as error:
        # Wrong bytes lead zipfile and zlib to errors of any kind.
        raise UserError(f'checkpoint {path!r} is damaged: {str(error) or type(error).__name__}') from error
    if damaged is not None:
        raise UserError(f'checkpoint {path!r} is damaged: the check sum of {damaged!r} is wrong')


def _candidates(cfg: Config) -> Iterator[str]:
    """Checkpoints of the run, the newest first.

    That is the one which ``last_checkpoint`` names, unless the process was killed just before it could name
    a later one. The times of files alone do not tell: a copy of the folder may have others.
    """
    named = _named_as_last(cfg)
    found = sorted(_saved(cfg), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    if named is None:
        yield from map(str, found)
        return
    place = Path(named)
    if place.is_file():
        later = [path for path in found if _is_later(path, place)]
        yield from map(str, sorted(later, key=_number, reverse=True))
        found = [path for path in found if path not in later and not path.samefile(place)]
    yield named
    yield from map(str, found)


def _named_as_last(cfg: Config) -> str | None:
    file = Path(cfg.work_dir, 'last_checkpoint')
    if not file.is_file():
        return None
    named = file.read_text(errors='replace').strip()
    # The folder may have been moved or copied since: a copy goes on from its own files.
    own = (folder / os.path.basename(named) for folder in _folders(cfg))
    return next((str(path) for path in own if path.is_file()), named) or None


def _written_since(path: str, since: float) -> bool:
    return os.path.isfile(path) and os.path.getmtime(path) >= since


def _saved(cfg: Config) -> Iterator[Path]:
    """What the checkpoint hook saved to resume from; its best ones hold no state of the optimizer."""
    template = _hook(cfg).get('filename_tmpl') or 'epoch_{}.pth'
    templates = {PREEMPTED_NAME, 'epoch_{}.pth', 'iter_{}.pth', template}
    pattern = '|'.join(r'\d+'.join(map(re.escape, template.split('{}'))) for template in templates)
    for folder in _folders(cfg):
        for path in folder.iterdir() if folder.is_dir() else ():
            if re.fullmatch(pattern, path.name) and path.is_file():
                yield path


def _folders(cfg: Config) -> list[Path]:
    """Where the checkpoint hook saves, and the work directory."""
    out_dir = _hook(cfg).get('out_dir')
    elsewhere = [Path(out_dir, Path(cfg.work_dir).name)] if out_dir else []
    return list(dict.fromkeys([*elsewhere, Path(cfg.work_dir)]))


def _hook(cfg: Config) -> dict[str, Any]:
    return (cfg.get('default_hooks') or {}).get('checkpoint') or {}


def _is_later(path: Path, than: Path) -> bool:
    stem, other = re.sub(r'\d+', '', path.name), re.sub(r'\d+', '', than.name)
    newer = path.stat().st_mtime_ns >= than.stat().st_mtime_ns
    return stem == other and newer and _number(path) > _number(than)


def _number(path: Path) -> int:
    digits = re.findall(r'\d+', path.name)
    return int(digits[-1]) if digits else -1


def _name(kind: Any) -> Any:
    return kind.removeprefix('mmengine.') if isinstance(kind, str) else getattr(kind, '__name__', kind)


def _say(line: str) -> None:
    if is_main_process():
        print(line, flush=True)
