"""Iteration over nested configs: every dict, and every dataset inside its wrappers."""

from collections.abc import Iterator
from typing import Any


def walk_dicts(node: Any, key: str = '') -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every dict at or below `node`, each with its dotted key."""
    if isinstance(node, dict):
        yield key, node
        for name, child in node.items():
            yield from walk_dicts(child, f'{key}.{name}')
    elif isinstance(node, list | tuple):
        for i, child in enumerate(node):
            yield from walk_dicts(child, f'{key}.{i}')


def leaf_datasets(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield the configs of the datasets inside wrappers such as RepeatDataset and ConcatDataset.

    Args:
        dataset: The `dataset` of a dataloader config. None and datasets that are already built yield nothing.
    """
    if not isinstance(dataset, dict):
        return
    inner = dataset.get('datasets', [dataset['dataset']] if 'dataset' in dataset else None)
    if inner is None:
        yield dataset
        return
    for child in inner:
        yield from leaf_datasets(child)


def max_num_classes(model: Any) -> int:
    """Return the largest `num_classes` in a model config, 0 if there is none.

    The largest, because a head for binary segmentation may have one channel fewer than classes.
    """
    return max((node['num_classes'] for _, node in walk_dicts(model) if 'num_classes' in node), default=0)
