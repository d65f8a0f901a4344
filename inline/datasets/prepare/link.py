"""A link from where the configs look for a data set to where it is."""

import os
from pathlib import Path

from inline.errors import UserError


def check_place(place: Path, copy: Path) -> bool:
    """Whether `place` leads to `copy` already. Anything else that is there is refused."""
    if os.path.lexists(place):
        if place.exists() and place.samefile(copy):
            return True
        what = f'a link to {place.readlink()}' if place.is_symlink() else 'there already and no link'
        raise UserError(
            f'{place} is {what}: move it away, name another --data-root, or give --no-link to check only'
        )
    for parent in place.parents:
        if parent.exists() and not parent.is_dir():
            raise UserError(f'{place} cannot be linked: {parent} is no folder')
    return False


def link(place: Path, copy: Path) -> str:
    """Let `place` lead to `copy`; return what was done."""
    if check_place(place, copy):
        return f'in place already: {place}'
    target = Path(os.path.abspath(copy))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target, target_is_directory=True)
    except OSError as error:
        raise UserError(f'{place} cannot be linked to {target}: {error.strerror}') from error
    return f'linked: {place} -> {target}'
