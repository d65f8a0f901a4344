"""Settings in the text of a config, as MMEngine stores it in a checkpoint: parsed as data, never executed."""

import ast
from collections.abc import Mapping
from typing import Any


def read_setting(text: str, name: str) -> Any:
    """Return a top-level setting; raises KeyError if there is none, ValueError if it is not plain data."""
    for statement in ast.parse(text).body:
        if assigned_name(statement) == name:
            return _literal(statement.value)  # type: ignore[attr-defined]  # it is an assignment
    raise KeyError(name)


def read_dict(text: str, name: str) -> Mapping[str, Any]:
    """Return a top-level setting that is a dict; `{}` if it is missing, damaged or something else."""
    try:
        found = read_setting(text, name)
    except (KeyError, ValueError, SyntaxError, RecursionError, TypeError, AttributeError):
        return {}
    return found if isinstance(found, Mapping) else {}


def assigned_name(statement: ast.stmt) -> str | None:
    """Return the name on the left of an assignment; None for other statements."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _literal(node: ast.expr) -> Any:
    """Evaluate literals and calls of dict()."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
        return {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    if isinstance(node, ast.Dict):
        return {
            _literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key
        }
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(element) for element in node.elts]
    return ast.literal_eval(node)
