"""Every patch of a third-party package.

Each patch is one function. Its docstring gives the reason and the condition under which it can be removed.
:func:`apply_patches` must run before a toolbox is imported or a config is read. The entry points of training
and testing also call :func:`apply_training_patches`; loading a model for inference does not.
``python -m inline.openmmlab.patches`` checks an installation.
"""

import gc
import logging
import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from inline.utils.errors import UserError
from inline.utils.imports import OnDemandFinder, import_torchvision_without_operators, major_version

# Modules of mmdet, and the packages that they import although few detectors need them.
_MMDET_EXTRAS = {
    'mmdet.models.task_modules.tracking.interpolation': ['sklearn.gaussian_process.kernels'],
    'mmdet.models.dense_heads.paa_head': ['sklearn.mixture'],
    'mmdet.models.language_models.bert': ['transformers'],
    'mmdet.models.dense_heads.atss_vlfusion_head': ['transformers'],
    'mmdet.datasets.transforms.text_transformers': ['transformers'],
}


def apply_patches() -> None:
    """Apply the patches without which configs cannot be read or toolboxes cannot be imported."""
    with pause_garbage_collection():
        import_torchvision_without_operators()
        import_transformers_on_demand()
        import_detection_extras_on_demand()
        import_yapf_without_cache()
        find_mmseg_configs()
        skip_metafile_search()
        skip_multimodal_models()
        silence_debug_messages()


def apply_training_patches() -> None:
    """Apply the patches for training and testing."""
    load_checkpoints_safely()
    read_data_files_safely()
    write_files_atomically()
    report_empty_datasets()
    renumber_annotation_zero()
    silence_library_warnings()
    format_configs_once()


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Do not collect garbage in the block: imports create a million objects, all of which are kept."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def import_transformers_on_demand() -> None:
    """Import transformers only if a config names its optimizer Adafactor.

    Reason: MMEngine imports it to register this optimizer, and with it peft and accelerate, which takes more
    than a second in every process. Remove when MMEngine registers the optimizer by its name.
    """
    if 'mmengine.optim' in sys.modules or 'transformers' in sys.modules or find_spec('transformers') is None:
        return
    sys.modules['transformers'] = None  # type: ignore[assignment]
    try:
        from mmengine.optim import optimizer  # noqa: F401
    finally:
        del sys.modules['transformers']
    from mmengine.registry import OPTIMIZERS

    def create_adafactor(params: Any, **options: Any) -> Any:
        from transformers import Adafactor

        return Adafactor(params, **options)

    OPTIMIZERS.register_module('Adafactor', module=create_adafactor)


def import_detection_extras_on_demand() -> None:
    """Import scikit-learn and transformers only if a detector of mmdet uses them.

    Reason: several modules of mmdet import them for trackers, PAA and text-guided detectors, and mmpretrain
    imports mmdet, so that every process spends more than two seconds on it. Remove when mmdet imports them
    where it uses them.
    """
    if not any(isinstance(finder, OnDemandFinder) for finder in sys.meta_path):
        # transformers 5 lacks a function that this module imports, and importing takes a second to find out.
        absent = (
            {'mmdet.models.utils.vlfuse_helper': 'transformers'} if major_version('transformers') >= 5 else {}
        )
        sys.meta_path.insert(0, OnDemandFinder(_MMDET_EXTRAS, absent))


def import_yapf_without_cache() -> None:
    """Import yapf, with which MMEngine formats configs, even if its cache file is truncated.

    Reason: yapf caches its grammar in a file that it does not write atomically. If several processes start at
    once on a new machine, one may read a truncated file, and if a process dies while writing it, all later
    processes do. In that case the grammar is parsed again. Remove when yapf writes the file atomically.
    """
    try:
        import yapf  # type: ignore[import-untyped]
    except (EOFError, pickle.UnpicklingError):
        before = os.environ.get('XDG_CACHE_HOME')
        with tempfile.TemporaryDirectory() as folder:
            os.environ['XDG_CACHE_HOME'] = folder
            try:
                import yapf  # noqa: F401
            finally:
                del os.environ['XDG_CACHE_HOME']
                if before is not None:
                    os.environ['XDG_CACHE_HOME'] = before


def find_mmseg_configs() -> None:
    """Let ``_base_ = 'mmseg::…'`` find its package.

    Reason: MMEngine looks for the distribution ``mmsegmentation``; the maintained one has a different name.
    Remove when MMEngine looks for the import name.
    """
    from mmengine.config.utils import MODULE2PACKAGE

    MODULE2PACKAGE['mmseg'] = 'mmseg'


def skip_metafile_search() -> None:
    """Resolve ``_base_ = 'mmdet::_base_/…'`` without a search through the metafiles of the toolbox.

    Reason: MMEngine searches them first, which takes 0.4 s per file, although metafiles name trained models
    only. Remove when MMEngine looks for the file first.
    """
    from mmengine.config import config

    search = config._get_external_cfg_path
    if search.__module__ == __name__:
        return

    def find(package_path: str, name: str) -> str:
        if name.startswith('_base_/'):
            # MMEngine catches this error and uses the path as it is.
            raise ValueError(f'{name} is in no metafile')
        return str(search(package_path, name))

    config._get_external_cfg_path = find


def skip_multimodal_models() -> None:
    """Import mmpretrain without its language models, as if transformers were not installed.

    Reason: they import functions that transformers 5 removed, and ``import mmpretrain.models`` fails with it.
    With an older or no transformers nothing changes. Remove when mmpretrain's language models can be
    imported with transformers 5.
    """
    if major_version('transformers') >= 5:
        from mmpretrain.utils import dependency

        dependency.WITH_MULTIMODAL = False


def silence_debug_messages() -> None:
    """Do not print DEBUG messages without a logger.

    Reason: MMEngine prints them regardless of the log level, so every run begins with "Could not import
    OneDL". Remove when ``print_log`` respects the level without a logger.
    """
    from mmengine import logging as mmengine_logging

    print_log = mmengine_logging.print_log
    if print_log.__module__ == __name__:
        return

    def print_unless_debug(msg: Any, logger: Any = None, level: int = logging.INFO) -> None:
        if logger is not None or level > logging.DEBUG:
            print_log(msg, logger, level)

    mmengine_logging.print_log = print_unless_debug


def silence_library_warnings() -> None:
    """Hide warnings of the toolboxes about their own defaults and optional packages.

    Reason: users cannot act on them, and they hide more important ones. Remove each when the toolbox stops
    printing it.
    """
    for message in (
        'faster_coco_eval is not installed',
        'Default ``avg_non_ignore`` is False',
        'The draw is False, it means that the hook for visualization',
    ):
        warnings.filterwarnings('ignore', message)


def format_configs_once() -> None:
    """Format the text of a config once per process.

    Reason: MMEngine formats it for the log, for the saved file and for every visualization backend, which
    takes 0.2 s each time. Remove when MMEngine keeps the text.
    """
    from yapf.yapflib import yapf_api  # type: ignore[import-untyped]

    format_code = yapf_api.FormatCode
    if format_code.__module__ == __name__:
        return
    known: dict[str, Any] = {}

    def format_once(text: str, **options: Any) -> Any:
        if text not in known:
            known[text] = format_code(text, **options)
        return known[text]

    yapf_api.FormatCode = format_once


def silence_pycocotools() -> None:
    """Do not print the progress of reading COCO annotations.

    Reason: pycocotools prints four lines for each file, and more for each evaluation, regardless of the log
    level. Remove when it logs them.
    """
    from pycocotools import coco, cocoeval

    coco.print = cocoeval.print = lambda *_, **__: None


@contextmanager
def configure_terminal_handlers(configure: Callable[[logging.Handler], None]) -> Iterator[None]:
    """Call `configure` with the terminal handler of every runner logger created in this context.

    Reason: MMEngine's runner creates a logger that prints everything, and logs environment and config before
    its constructor returns. Remove when a runner accepts a logger, or a level for the terminal.
    """
    from mmengine.runner import Runner

    build_logger = Runner.build_logger

    def build_and_configure(self: Runner, *args: Any, **options: Any) -> Any:
        logger = build_logger(self, *args, **options)
        for handler in logger.handlers:
            if not isinstance(handler, logging.FileHandler):
                configure(handler)
        return logger

    Runner.build_logger = build_and_configure
    try:
        yield
    finally:
        Runner.build_logger = build_logger


def write_files_atomically() -> None:
    """Let MMEngine's local file backend write atomically.

    Reason: ``LocalBackend.put`` writes to the final name, so that a killed process or a full disk leaves a
    partial checkpoint there. Remove when MMEngine writes to a temporary file and renames it.
    """
    from mmengine.fileio import LocalBackend

    from inline.utils import atomic

    def put(_: LocalBackend, obj: bytes, filepath: str | Path) -> None:
        atomic.atomic_write(filepath, obj)

    def put_text(_: LocalBackend, obj: str, filepath: str | Path, encoding: str = 'utf-8') -> None:
        atomic.atomic_write(filepath, obj.encode(encoding))

    LocalBackend.put, LocalBackend.put_text = put, put_text


def load_checkpoints_safely() -> None:
    """Make MMEngine read checkpoints with :mod:`inline.checkpoints`, for ``load_from``, resume and init_cfg.

    Reason: MMEngine tries a restricted unpickler and then loads the file without restriction, unpickles
    downloads without restriction, runs ``meta['config']`` of a file as Python when it resumes, and knows
    neither safetensors nor published folders. After loading it only logs what did not match. Remove the
    first part when MMEngine always loads with ``weights_only=True`` and no longer reads ``meta['config']``.
    """
    from mmengine.model import BaseTTAModel, is_model_wrapper
    from mmengine.runner import CheckpointLoader, checkpoint, runner

    from inline.checkpoints import as_checkpoint, check_num_heads, load_partial_state_dict, read_file
    from inline.openmmlab.backbones import log_load_report

    def load_file(file: Any, map_location: Any = 'cpu', weights_only: bool | None = None) -> Any:  # noqa: ARG001
        content = read_file(file, map_location)
        if isinstance(content, dict) and isinstance(content.get('meta'), dict):
            content['meta'].pop('config', None)
        return content

    def load_url(url: str, model_dir: str | None = None, map_location: Any = 'cpu', **_: Any) -> Any:  # noqa: ARG001
        return load_file(url, map_location)

    # MMEngine logs the name after `load_from_`.
    def load_from_inline(filename: str, map_location: Any = 'cpu') -> dict[str, Any]:
        return {**as_checkpoint(load_file(filename, map_location), filename).content, 'source': filename}

    def load_into_model(model: Any, loaded: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        source = str(loaded.get('source', 'load_from'))
        # Loaders of other schemes, such as openmmlab://, return the content of the file as it is.
        weights = loaded['state_dict'] if 'state_dict' in loaded else as_checkpoint(loaded, source).state_dict
        note = check_num_heads(model, loaded.get('meta') or {}, source)
        report = load_partial_state_dict(model, weights, source)
        log_load_report(f'checkpoint {source!r}: {report.describe()}{note}', report.exact)
        return loaded

    CheckpointLoader.register_scheme(('', 'http://', 'https://'), load_from_inline, force=True)
    checkpoint._safe_torch_load = load_file
    checkpoint.load_url = load_url
    runner._load_checkpoint_to_model = load_into_model


def read_data_files_safely() -> None:
    """Make MMEngine read pickle and YAML files, such as annotations, without running code in them.

    Reason: MMEngine unpickles annotation files without restriction and builds any Python object that a YAML
    file asks for. Remove when its file handlers load data only.
    """
    import yaml
    from mmengine.fileio import PickleHandler, YamlHandler, register_handler

    from inline.checkpoints import load_pickle

    class SafePickleHandler(PickleHandler):
        def load_from_fileobj(self, file: IO[bytes]) -> Any:
            return load_pickle(file)

    class SafeYamlHandler(YamlHandler):
        def load_from_fileobj(self, file: IO[str]) -> Any:
            try:
                return yaml.safe_load(file)
            except yaml.YAMLError as error:
                reason = ' '.join(str(error).split())
                raise UserError(f'a YAML file is damaged or not plain data: {reason}') from error

    register_handler(['pickle', 'pkl'])(SafePickleHandler)
    register_handler(['yaml', 'yml'])(SafeYamlHandler)


def report_empty_datasets() -> None:
    """Raise a :class:`UserError` that names a dataset without samples.

    Reason: MMEngine fails with numpy's "need at least one array to concatenate" and does not name the
    dataset. Remove when ``BaseDataset.full_init`` checks the number of samples.
    """
    from mmengine.dataset import BaseDataset

    serialize = BaseDataset._serialize_data
    if serialize.__module__ == __name__:
        return

    def check_and_serialize(self: BaseDataset) -> Any:
        if not self.data_list:
            path = self.ann_file or next(iter(self.data_prefix.values()), '') or self.data_root
            raise UserError(f'the dataset {str(path)!r} has no samples')
        return serialize(self)

    BaseDataset._serialize_data = check_and_serialize


def renumber_annotation_zero() -> None:
    """Replace the annotation id 0, if it occurs, when the ground truth is evaluated.

    Reason: pycocotools marks unmatched detections with the id 0, so a detection of this object counts as a
    false positive: four perfect boxes have an AP of 0.564. Several annotation tools number from 0. Training
    does not use the ids. Remove when ``COCOeval.evaluateImg`` marks unmatched detections differently.
    """
    from pycocotools.cocoeval import COCOeval

    init = COCOeval.__init__
    if init.__module__ == __name__:
        return

    def renumber_and_init(self: COCOeval, cocoGt: Any = None, *args: Any, **options: Any) -> None:
        objects = cocoGt.anns if cocoGt is not None else {}
        if 0 in objects:
            # The other indices of pycocotools refer to the same dict.
            new_id = max(objects) + 1
            objects[new_id] = objects.pop(0)
            objects[new_id]['id'] = new_id
        init(self, cocoGt, *args, **options)

    COCOeval.__init__ = renumber_and_init


def provide_wandb_join() -> None:
    """Add ``wandb.join`` to versions of wandb that have ``wandb.finish`` only.

    Reason: MMEngine's backend calls the old name at the end of a run. Remove when it calls ``finish``.
    """
    import wandb  # type: ignore[import-not-found]

    if not hasattr(wandb, 'join'):
        wandb.join = wandb.finish


def collect_results_in_memory(gather: Callable[[list[Any], int], list[Any] | None]) -> None:
    """Gather the results of a distributed test with collectives, and write the metrics on rank 0 only.

    Reason: MMEngine exchanges results through a folder in the current directory, which must be shared
    between machines and writable, and leaves the folder behind. Every rank then writes the metrics to the
    same JSON file. Remove when ``collect_results_cpu`` gathers with collectives and
    ``LoggerHook.after_test_epoch`` writes on the main process only.

    Args:
        gather: Takes the results of this rank and the number of samples. Returns all results on rank 0 and
            None on the others.
    """
    from mmengine.dist import dist, master_only
    from mmengine.hooks import LoggerHook

    if dist.collect_results_cpu.__module__ == __name__:
        return
    collect_through_files = dist.collect_results_cpu

    def collect(result_part: list[Any], size: int, tmpdir: str | None = None) -> list[Any] | None:
        # A metric that names a folder (`collect_dir`) exchanges results through files in it.
        if tmpdir is not None:
            return collect_through_files(result_part, size, tmpdir)
        return gather(result_part, size)

    dist.collect_results_cpu = collect
    LoggerHook.after_test_epoch = master_only(LoggerHook.after_test_epoch)


def refuse_gradio_downloads() -> None:
    """Make Gradio refuse a URL where it expects an uploaded file.

    Reason: any input of an event may contain a URL, which Gradio downloads, so anyone who can open the page
    can send requests from this machine. Remove when Gradio has a setting for it.
    """
    import gradio
    from gradio import processing_utils

    async def refuse(url: str, cache_dir: str = '') -> Any:  # noqa: ARG001 (Gradio's signature)
        raise gradio.Error('A URL is not fetched: upload the file.', print_exception=False)

    processing_utils.async_ssrf_protected_get = refuse
    processing_utils.async_ssrf_protected_download = refuse


def check_operators() -> None:
    """Run one of mmcv's compiled operators, to detect a build without them."""
    import torch
    from mmcv.ops import nms

    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])
    _, kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), iou_threshold=0.5)
    if kept.tolist() != [0, 2]:
        raise RuntimeError(f'mmcv.ops.nms kept boxes {kept.tolist()} of three, expected [0, 2]')


if __name__ == '__main__':
    apply_patches()
    check_operators()
