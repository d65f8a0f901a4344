"""Finding config files, by path or by the name of a file in ``configs/``.

``python -m inline.engine.config_files NAME`` checks a name for the launch scripts.
"""

import difflib
import sys
from pathlib import Path

from inline.checkpoints.sources import CHECKPOINT_SUFFIXES
from inline.utils.errors import UserError, exit_on_user_error
from inline.utils.resources import CONFIGS

_MAX_SUGGESTIONS = 3


def find_config_path(config: str | Path) -> Path:
    """Return the file of a config, given by its path or by its name in ``configs/``.

    A name is that of a file without its suffix, such as ``inline-pvt-micro_digits``, or with folders of
    ``configs/`` in front of it.

    Raises:
        UserError: There is no such file, or several files have the name. The message suggests similar ones.
    """
    path = Path(config)
    if path.is_file() and path.suffix not in CHECKPOINT_SUFFIXES:
        return path
    if Path(f'{config}.py').is_file():
        return Path(f'{config}.py')
    if path.suffix in CHECKPOINT_SUFFIXES:
        raise UserError(f'config {str(path)!r} looks like a checkpoint: CONFIG comes first')
    if path.suffix == '.py' and path.parent != Path():
        raise _not_found(path)
    return _find_by_name(str(config).removesuffix('.py'), str(config))


def _not_found(path: Path) -> UserError:
    """Describe a path that does not exist; suggest a similar file in its folder, or one of the same name."""
    siblings = [str(other) for other in sorted(path.parent.glob('*.py'))]
    close = difflib.get_close_matches(str(path), siblings, n=1)
    same_name = [] if close else [str(other) for other in _named_files().get(path.stem, ())]
    similar = ', '.join([*close, *same_name][:_MAX_SUGGESTIONS])
    advice = f'did you mean {similar}?' if similar else 'give a path, or a name from configs/'
    return UserError(f'config {str(path)!r} does not exist: {advice}')


def _find_by_name(name: str, given: str) -> Path:
    known = _named_files()
    if not known:
        raise UserError(
            f'config {given!r} does not exist, and there is no folder configs/ with configs by name'
        )
    found = known.get(name, [])
    if len(found) > 1:
        names = [key for path in found for key in known if known[key] == [path]]
        several = ', '.join(names[:_MAX_SUGGESTIONS])
        raise UserError(f'config {given!r} is the name of {len(found)} files: give a path, such as {several}')
    if not found:
        # Each file has two names.
        close = {
            known[key][0]: key for key in difflib.get_close_matches(name, known, n=_MAX_SUGGESTIONS)[::-1]
        }
        names = [*close.values()][::-1]
        advice = f'did you mean {", ".join(names)}?' if names else 'give a path, or a name from configs/'
        raise UserError(f'config {given!r} does not exist: {advice}')
    return found[0]


def _named_files() -> dict[str, list[Path]]:
    """Return the config files by name and by path below ``configs/``, both without the suffix.

    The folder in the current directory comes first. A file of this project is found if that folder has none
    of its name.
    """
    known: dict[str, list[Path]] = {}
    for root in (Path('configs'), CONFIGS):
        own: dict[str, list[Path]] = {}
        for path in sorted(root.rglob('*.py')):
            inner = path.relative_to(root).with_suffix('')
            if '_base_' not in inner.parts:
                for key in {inner.name, inner.as_posix()}:
                    own.setdefault(key, []).append(path)
        known = {**own, **known}
    return known


if __name__ == '__main__':
    with exit_on_user_error():
        find_config_path(sys.argv[1])
