"""Extension of Griffe, which reads the docstrings for the site: roles such as :func:`name` become code."""

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r':(?:attr|class|data|func|meth|mod):(?=`)')


class Roles(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub('', obj.docstring.value)
