"""Iteration over nested configs."""

from inline.utils.nested import leaf_datasets, max_num_classes, walk_dicts


def test_walk_dicts_yields_dotted_keys() -> None:
    config = {'a': [{'b': 1}, ({'c': 2},)], 'd': {'e': {}}}
    assert [key for key, _ in walk_dicts(config, 'model')] == [
        'model',
        'model.a.0',
        'model.a.1.0',
        'model.d',
        'model.d.e',
    ]


def test_leaf_datasets_descends_into_wrappers() -> None:
    first, second, third = ({'type': 'ImageNet', 'split': split} for split in ('train', 'val', 'test'))
    repeated = {'type': 'RepeatDataset', 'times': 2, 'dataset': first}
    checked = {'type': 'InLineCheckedDataset', 'dataset': third}
    wrapped = {'type': 'ConcatDataset', 'datasets': [repeated, second, {'type': 'Outer', 'dataset': checked}]}
    assert list(leaf_datasets(wrapped)) == [first, second, third]
    assert next(leaf_datasets(wrapped)) is first, 'callers change the dict in place'
    assert list(leaf_datasets(None)) == []


def test_max_num_classes() -> None:
    assert max_num_classes({'decode_head': {'num_classes': 2}, 'auxiliary_head': [{'num_classes': 1}]}) == 2
    assert max_num_classes({}) == 0
