"""What :class:`inline.InLineModel` needs to run an exported file without a config.

The metadata of a file contain the test pipeline, the preprocessor and the postprocessing as plain values. A
file may come from others, so only transforms and arguments that are listed here are built from it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.model import BaseModel

from inline.apis.export import openvino_ir
from inline.apis.loading import TASKS, Classes
from inline.utils.arguments import check_type
from inline.utils.drawing import class_palette
from inline.utils.errors import UserError
from inline.utils.nested import leaf_datasets

SCOPES = {task: scope for scope, task in TASKS.items()}
# Runtimes by the suffix of a file.
RUNTIMES = {'.onnx': 'onnx', '.xml': 'openvino'}
# Transforms that a file may name, and the arguments that it may give.
_TRANSFORMS = {
    'LoadImage': ('color_type', 'imdecode_backend', 'to_float32'),
    'LoadImageFromFile': ('color_type', 'imdecode_backend', 'to_float32'),
    'Resize': ('scale', 'scale_factor', 'keep_ratio', 'backend', 'interpolation'),
    'ResizeEdge': ('scale', 'edge', 'backend', 'interpolation'),
    'CenterCrop': ('crop_size',),
    'PackInputs': ('meta_keys',),
    'PackDetInputs': ('meta_keys',),
    'PackSegInputs': ('meta_keys',),
}
# Not part of the metadata: images have no annotations.
_SKIPPED = ('LoadAnnotations', 'LoadLabelMap', 'LoadPanopticAnnotations')
_PREPROCESSORS = {
    'classification': ('ClsDataPreprocessor', ('mean', 'std', 'to_rgb', 'pad_size_divisor', 'pad_value')),
    'detection': (
        'DetDataPreprocessor',
        ('mean', 'std', 'bgr_to_rgb', 'rgb_to_bgr', 'pad_size_divisor', 'pad_value', 'pad_mask'),
    ),
    'segmentation': (
        'SegDataPreProcessor',
        (
            'mean',
            'std',
            'bgr_to_rgb',
            'rgb_to_bgr',
            'pad_val',
            'seg_pad_val',
            'size',
            'size_divisor',
            'test_cfg',
        ),
    ),
}
# Arguments that matter in training only.
_TRAINING_ONLY = ('type', 'batch_augments', 'num_classes', 'to_onehot')


def describe_inference(cfg: Config, model: BaseModel, classes: Classes) -> dict[str, Any]:
    """Return metadata with which a file runs without its config: ``preprocessing`` and ``postprocessing``.

    ``preprocessing`` is None if a step of the test pipeline or the preprocessor is not a usual one.
    """
    task = TASKS[cfg.default_scope]
    post: dict[str, Any] = {}
    if task == 'classification':
        from mmpretrain.models.heads import ClsHead

        usual = getattr(type(model.head), '_get_predictions', None) is ClsHead._get_predictions
        post['scores'] = 'softmax' if usual else None
    elif task == 'segmentation':
        post = {
            'align_corners': bool(model.align_corners),
            'threshold': getattr(model.decode_head, 'threshold', None),
            'test_cfg': _plain(dict(model.test_cfg)) if model.test_cfg.get('mode') == 'slide' else {},
        }
    else:
        rcnn = (model.test_cfg or {}).get('rcnn') or {}
        post['mask_threshold'] = rcnn.get('mask_thr_binary', 0.5)
    return {
        'preprocessing': _describe_preprocessing(cfg, task),
        'postprocessing': post,
        'palette': [list(color) for color in classes.palette],
        'category_ids': list(classes.category_ids) if task == 'detection' else [],
    }


def _describe_preprocessing(cfg: Config, task: str) -> dict[str, Any] | None:
    dataset = next(leaf_datasets((cfg.get('test_dataloader') or {}).get('dataset')), None) or {}
    name, known = _PREPROCESSORS[task]
    given = dict(cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {})
    arguments = {key: value for key, value in given.items() if key not in _TRAINING_ONLY}
    if _type_name(given, name) != name or not set(arguments) <= {*known} or 'pipeline' not in dataset:
        return None
    steps = []
    for step in dataset['pipeline']:
        step_name = _type_name(step)
        if step_name in _SKIPPED:
            continue
        if step_name in ('LoadImage', 'LoadImageFromFile'):
            step = {key: value for key, value in step.items() if key in ('type', *_TRANSFORMS[step_name])}
        if step_name not in _TRANSFORMS or not set(step) <= {'type', *_TRANSFORMS[step_name]}:
            return None
        steps.append({**step, 'type': step_name})
    return {'pipeline': _plain(steps), 'data_preprocessor': _plain(arguments)}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=list))


def _type_name(node: Mapping[str, Any], default: str = '') -> str:
    return str(node.get('type', default)).rpartition('.')[2]


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of an exported file, checked.

    Raises a :class:`UserError` if the file cannot be read or was not written by ``inline export``.
    """
    if not path.is_file():
        raise UserError(f'exported model {str(path)!r} does not exist')
    try:
        if RUNTIMES[path.suffix] == 'openvino':
            texts = openvino_ir.read_metadata(path)
        else:
            import onnx

            model = onnx.load(path, load_external_data=False)
            texts = {entry.key: entry.value for entry in model.metadata_props}
        metadata = {key: json.loads(text) for key, text in texts.items()}
    except (RuntimeError, ValueError, RecursionError, _decode_error()) as error:
        raise UserError(
            f'{str(path)!r} is not a readable model: {str(error).strip().splitlines()[-1]}'
        ) from error
    missing = {'task', 'input', 'outputs', 'classes', 'postprocessing'} - metadata.keys()
    if missing:
        raise UserError(
            f'{str(path)!r} has no {", ".join(sorted(missing))} in its metadata: '
            'write the file with `inline export`'
        )
    if metadata['task'] not in _PREPROCESSORS:
        raise UserError(
            f'{str(path)!r} returns {metadata["task"]}: a classifier, detector or segmentor is needed'
        )
    for key, annotation in (
        ('input', dict[str, Any]),
        ('postprocessing', dict[str, Any]),
        ('classes', list[str]),
        ('outputs', list[str]),
        ('palette', list[list[int]]),
        ('category_ids', list[int]),
    ):
        check_type(key, metadata.get(key, []), annotation, str(path))
    return metadata


def _decode_error() -> type[Exception]:
    """Return the error of a file that is not in the format of ONNX."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    error: type[Exception] = DecodeError
    return error


def config_of_metadata(metadata: Mapping[str, Any], path: Path) -> Config:
    """Return a config with the test pipeline and the preprocessor that the metadata of a file describe."""
    task, stated = metadata['task'], metadata.get('preprocessing')
    if stated is None:
        raise UserError(
            f'{str(path)!r} does not contain its test pipeline, which has unusual steps: give the config'
        )
    check_type('preprocessing', stated, dict[str, Any], str(path))
    pipeline, arguments = stated.get('pipeline'), stated.get('data_preprocessor')
    check_type('pipeline', pipeline, list[dict[str, Any]], str(path))
    check_type('data_preprocessor', arguments, dict[str, Any], str(path))
    assert pipeline is not None
    assert arguments is not None
    name, known = _PREPROCESSORS[task]
    for step in pipeline:
        allowed = _TRANSFORMS.get(str(step.get('type')))
        if allowed is None or not set(step) <= {'type', *allowed}:
            raise UserError(
                f'{str(path)!r}: step {step!r} of the test pipeline is not supported, give the config'
            )
    if not set(arguments) <= {*known}:
        raise UserError(f'{str(path)!r}: data_preprocessor has unknown arguments, give the config')
    steps = [{key: _tuples(value) for key, value in step.items()} for step in pipeline]
    return Config(
        {
            'default_scope': SCOPES[task],
            'model': {'data_preprocessor': {'type': name, **arguments}},
            'test_dataloader': {'dataset': {'pipeline': steps}},
        }
    )


def _tuples(value: Any) -> Any:
    """Return lists as tuples: mmcv's Resize takes no lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def classes_of_metadata(metadata: Mapping[str, Any]) -> Classes:
    """Return class names, colours and COCO ids of a file."""
    names = tuple(metadata['classes'])
    palette = tuple((int(red), int(green), int(blue)) for red, green, blue in metadata.get('palette') or ())
    palette = palette if len(palette) == len(names) else class_palette(len(names))
    return Classes(names, palette, tuple(metadata.get('category_ids') or ()), from_checkpoint=True)
