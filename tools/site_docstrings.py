"""Griffe extension for the API pages: shows roles such as :func:`name` as plain code."""

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r':(?:attr|class|data|func|meth|mod):(?=`)')


class Roles(Extension):
    """Removes reStructuredText roles from all docstrings."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub('', obj.docstring.value)
